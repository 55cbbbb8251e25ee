"""Packed and padded token sequences of rollouts, beside a plain loop over `store.rollout(i).branches`."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from effort import looped
from episodelake.rollouts.packing import first_fit
from episodelake.testing.adapters import case

NUMBERS = ("logprobs", "reference_logprobs", "advantages", "loss_weights", "token_rewards")
USER, MODEL = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
NAMES = itertools.count()
#: Keys with an entry for each sequence, not for each token.
OF_SEQUENCES = ("sequence_lengths", "episode")
Plain = dict[str, np.ndarray]


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `append` for a message: any mask, numbers for its sampled tokens, or no tokens."""
    sampled = draw(st.booleans())
    given: dict[str, Any] = {"message": MODEL if sampled else USER, "sampled": sampled}
    tokens = draw(st.none() | st.lists(st.integers(0, 99), max_size=5))
    if tokens is None:
        return given
    mask = [sampled] * len(tokens)
    if draw(st.booleans()):
        mask = given["mask"] = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    for name in draw(st.sets(st.sampled_from(NUMBERS))):
        given[name] = draw(st.lists(st.floats(-4, 4, width=32), min_size=sum(mask), max_size=sum(mask)))
    return {**given, "tokens": tokens}


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """A rollout: messages, the one that each continues, and an advantage of its own or none."""
    given = draw(st.lists(messages(), min_size=1, max_size=6))
    parents = [draw(st.integers(-1, at - 1)) for at in range(len(given))]
    ended = draw(st.booleans())
    return {
        "messages": given,
        "parents": parents,
        "ended": ended,
        "advantage": draw(st.none() | st.just(0.5)),
    }


def stored(rollouts: Sequence[dict[str, Any]]) -> el.EpisodeStore:
    """A store of rollouts, whole or cut at the end of their writer."""
    store = el.create(f"memory://packing-{next(NAMES)}", el.Rollouts())
    with store.writer() as writer:
        for number, rollout in enumerate(rollouts):
            made = writer.begin_rollout(group="ab"[number % 2])
            for message, parent in zip(rollout["messages"], rollout["parents"], strict=True):
                made.append(**message, parent=parent)
            if rollout["ended"]:
                made.end(advantage=rollout["advantage"])
    return store.refresh()


def plain_sequences(view: el.EpisodeView, n: int, too_long: str) -> list[Plain]:
    """The sequences of a view by a loop over its branches, with all keys."""
    made = []
    for number in range(len(view)):
        rollout = view.rollout(number)
        whole = rollout.metadata.get("advantage", 0.0)
        for branch in rollout.branches:
            values = {name: branch.numbers_of_sampled[name].copy() for name in NUMBERS}
            values["advantages"][np.isnan(values["advantages"]) & branch.mask] = whole
            keys = {"input_ids": branch.tokens, "loss_mask": branch.mask & branch.first}
            keys |= {name: np.nan_to_num(each) for name, each in values.items()}
            pieces = [slice(low, low + n) for low in range(0, len(branch.tokens), n)]
            for piece in pieces[:1] if too_long == "cut" else pieces:
                own = {key: each[piece] for key, each in keys.items()}
                own["position_ids"] = np.arange(len(own["input_ids"]))
                made.append({**own, "episode": np.array(number)})
    return made


def unpacked(batch: Plain) -> list[Plain]:
    """The sequences of a pack."""
    stops = np.cumsum(batch["sequence_lengths"])
    assert stops[-1] == len(batch["input_ids"])
    return [
        {key: values[low:high] for key, values in batch.items() if key not in OF_SEQUENCES}
        | {"episode": episode}
        for low, high, episode in zip([0, *stops[:-1]], stops, batch["episode"], strict=True)
    ]


def unpadded(batch: Plain) -> list[Plain]:
    """The sequences of a padded batch, whose padding is empty."""
    made = []
    for row, length in enumerate(batch["sequence_lengths"]):
        own = {key: each[row] for key, each in batch.items() if key not in OF_SEQUENCES}
        assert own.pop("attention_mask").tolist() == [True] * length + [False] * (
            len(own["input_ids"]) - length
        )
        assert not any(each[length:].any() for each in own.values())
        made.append({key: each[:length] for key, each in own.items()} | {"episode": batch["episode"][row]})
    return made


def comparable(sequences: Sequence[Plain], keys: Iterable[str]) -> list[Any]:
    """Sequences as values that can be sorted and compared."""
    return [tuple(np.asarray(each[key]).tolist() for key in sorted(keys)) for each in sequences]


def equal_batches(some: Sequence[Plain], others: Sequence[Plain]) -> bool:
    """Whether batches have the same keys, types and values."""
    return len(some) == len(others) and all(
        one.keys() == other.keys()
        and all(one[key].dtype == other[key].dtype and np.array_equal(one[key], other[key]) for key in one)
        for one, other in zip(some, others, strict=True)
    )


@given(
    st.lists(trees(), min_size=1, max_size=5),
    st.integers(1, 12),
    st.sampled_from(["cut", "split"]),
    st.integers(0, 3),
    st.integers(1, 3),
    st.data(),
)
@pytest.mark.further
def test_an_epoch_has_each_branch_once(
    rollouts: list[dict[str, Any]], n: int, too_long: Any, seed: int, world: int, data: st.DataObject
) -> None:
    """Over all shards, packed or padded, in any order; each sampled token trains once; any state resumes."""
    store = stored(rollouts)
    expected = plain_sequences(store, n, too_long)
    if not expected:
        with pytest.raises(el.errors.InvalidArgumentError, match=r"has tokens|There is no episode"):
            store.loader(units=el.Packed(n))
        return
    packed = el.Packed(n, too_long=too_long)
    padded = el.Padded(n, too_long=too_long, to_longest=data.draw(st.booleans()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The loader leaves out", RuntimeWarning)
        makers: list[tuple[Callable[[Any], list[Plain]], Callable[[Any], el.Loader]]] = [
            (unpacked, lambda shard: store.loader(units=packed, shuffle=True, seed=seed, shard=shard)),
            (unpadded, lambda shard: store.loader(2, padded, shuffle=True, seed=seed, shard=shard)),
        ]
        for split, make in makers:
            whole = make((0, 1))
            whole.set_epoch(epoch := data.draw(st.integers(0, 2)))
            batches = list(whole)
            keys = set(batches[0]) - {"sequence_lengths", "attention_mask"}
            assert keys >= {"input_ids", "position_ids", "loss_mask", "episode"}
            seen = sorted(comparable([each for batch in batches for each in split(batch)], keys))
            assert seen == sorted(comparable(expected, keys))
            # Shards: "drop" leaves out the same few at the end, "pad" repeats the first ones.
            shards = [make(el.Shard(rank, world)) for rank in range(world)]
            for shard in shards:
                shard.set_epoch(epoch)
            parts = [[each for batch in shard for each in split(batch)] for shard in shards]
            together = comparable([each for part in parts for each in part], keys)
            assert all(together.count(each) >= seen.count(each) for each in seen)
            assert set(map(repr, together)) == set(map(repr, seen))
            # A state, through JSON, at any batch.
            stop = data.draw(st.integers(0, len(batches)))
            first, second = make((0, 1)), make((0, 1))
            first.set_epoch(epoch)
            assert len(first) == len(batches)
            assert equal_batches(list(itertools.islice(first, stop)), batches[:stop])
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            assert stop == len(batches) or equal_batches(list(second), batches[stop:])
            assert second.epoch == epoch + 1 and stop <= len(batches)
    total = sum(int(np.count_nonzero(each["loss_mask"])) for each in plain_sequences(store, 1000, "cut"))
    trained = sum(int(np.count_nonzero(each["loss_mask"])) for each in expected)
    assert trained == total if too_long == "split" else trained <= total


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(30, 60))
def test_packs_are_those_of_first_fit(lengths: list[int], room: int) -> None:
    """Each sequence goes to the first pack with room for it, as a plain loop finds it."""
    free: list[int] = []
    expected = []
    for length in lengths:
        pack = next((at for at, left in enumerate(free) if left >= length), len(free))
        free += [room] * (pack == len(free))
        free[pack] -= length
        expected.append(pack)
    assert first_fit(np.array(lengths), room).tolist() == expected


def tree(*lengths: int, **facts: Any) -> dict[str, Any]:
    """A rollout of one branch whose messages have so many tokens, the last ones sampled."""
    count = itertools.count(1)
    tokens = [list(itertools.islice(count, length)) for length in lengths]
    given = [{"message": USER, "tokens": each} for each in tokens[:-1]]
    given.append({"message": MODEL, "tokens": tokens[-1], "logprobs": [-1.0] * lengths[-1]})
    return {
        "messages": given,
        "parents": list(range(-1, len(lengths) - 1)),
        "ended": True,
        "advantage": None,
        **facts,
    }


LENGTHS = [(2, 3), (1, 6), (4, 4), (2, 1), (3, 3), (1, 1), (5, 2)]


@pytest.fixture(scope="module")
def store() -> el.EpisodeStore:
    """Seven rollouts of one branch each."""
    return stored([tree(*lengths, advantage=0.25) for lengths in LENGTHS])


def test_packs_in_order(store: el.EpisodeStore) -> None:
    """Without shuffle the sequences come in the order of the view; keys and types are as documented."""
    loader = store.loader(units=el.Packed(10))
    batches = list(loader)
    assert [batch["episode"].tolist() for batch in batches] == [[0, 3, 5], [1], [2], [4], [6]]
    assert len(loader) == loader.units == 5 and loader.epoch == 1
    assert {key: str(values.dtype) for key, values in batches[0].items()} == {
        "input_ids": "int32",
        "position_ids": "int32",
        "loss_mask": "bool",
        "logprobs": "float32",
        "advantages": "float32",
        "sequence_lengths": "int32",
        "episode": "int64",
    }
    first = batches[0]
    assert first["position_ids"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1]
    assert first["advantages"].tolist() == (first["loss_mask"] * 0.25).tolist()


def test_filtered_and_sorted_views(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Positions are those of the view; merged and compacted stores read alike."""
    for view in (
        store.filter("\"metadata.group\" = 'b'"),
        store.sort("length", descending=True),
        store[[4, 1, 2]],
        store.copy(tmp_path / "copy").compact(order_by="episode_id") and el.open(tmp_path / "copy"),
    ):
        batches = list(view.loader(units=el.Packed(1000)))
        keys = set(batches[0]) - {"sequence_lengths"}
        assert comparable(unpacked(batches[0]), keys) == comparable(plain_sequences(view, 1000, "cut"), keys)


def test_tensors(store: el.EpisodeStore) -> None:
    """Ids and positions of tensors are int64, which embeddings and losses of torch index by."""
    torch = pytest.importorskip("torch")
    plain = store.loader(units=el.Packed(10), shuffle=True)
    made = store.loader(units=el.Packed(10), shuffle=True, output="torch")
    for numpy_batch, batch in zip(plain, made, strict=True):
        assert batch["input_ids"].dtype == batch["position_ids"].dtype == torch.int64
        assert batch["loss_mask"].dtype == torch.bool
        assert all(np.array_equal(numpy_batch[key], batch[key].numpy()) for key in numpy_batch)
    workers = store.loader(units=el.Packed(10), shuffle=True, output="torch").torch_loader(2)
    again = store.loader(units=el.Packed(10), shuffle=True, output="torch")
    for _ in range(2):
        assert len(workers) == len(again)
        for one, other in zip(workers, again, strict=True):
            assert all(torch.equal(one[key], other[key]) for key in other)


def test_columns_choose_keys(store: el.EpisodeStore) -> None:
    """Any of the keys; prefetch, functions of batches and pickles work as for other loaders."""
    loader = store.loader(
        el.Batches(prefetch=2),
        el.Packed(10),
        columns=["input_ids", "sequence_lengths"],
        transforms=[lambda batch: {**batch, "labels": batch["input_ids"]}],
    )
    assert {tuple(batch) for batch in loader} == {("input_ids", "sequence_lengths", "labels")}
    own = store.loader(units=el.Packed(10), shuffle=True)
    assert equal_batches(list(pickle.loads(pickle.dumps(own))), list(own))


def test_a_padded_batch(store: el.EpisodeStore) -> None:
    """Padded to n, or to the longest; batches of any size follow a state."""
    fixed = list(store.loader(el.Batches(3, drop_last=True), el.Padded(12, pad_id=7)))
    assert [batch["input_ids"].shape for batch in fixed] == [(3, 12), (3, 12)]
    assert fixed[0]["input_ids"][0].tolist() == [1, 2, 3, 4, 5, *[7] * 7]
    loader = store.loader(3, el.Padded(12, pad_id=7, to_longest=True))
    assert [batch["input_ids"].shape for batch in loader] == [(3, 8), (3, 6), (1, 7)]
    # Across the end of an epoch: batches are joined.
    loader.take(5)
    joined = loader.take(4)
    assert joined["episode"].tolist() == [5, 6, 0, 1] and joined["input_ids"].shape == (4, 7)
    assert joined["input_ids"][0].tolist() == [1, 2, *[7] * 5]
    other = store.loader(2, el.Padded(12, pad_id=7, to_longest=True))
    other.load_state_dict(loader.state_dict())
    assert next(iter(other))["episode"].tolist() == [2, 3]


def test_long_branches() -> None:
    """An error names the longest; cut keeps the beginning; pieces are sequences of their own."""
    store = stored([tree(2, 3), tree(1, 12)])
    with pytest.raises(el.errors.InvalidArgumentError, match="1 of 2 branches have more than 5 tokens; the"):
        store.loader(units=el.Packed(5))
    (_, cut) = store.loader(units=el.Packed(5, too_long="cut"))
    assert cut["input_ids"].tolist() == [1, 2, 3, 4, 5]
    split = list(store.loader(units=el.Packed(5, too_long="split")))
    assert [batch["input_ids"].tolist() for batch in split[1:]] == [
        [1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10],
        [11, 12, 13],
    ]
    assert split[2]["position_ids"].tolist() == [0, 1, 2, 3, 4]


def test_rollouts_without_tokens() -> None:
    """Among others they are counted in one warning; alone they are an error."""
    bare = {"messages": [{"message": USER}], "parents": [-1], "ended": True, "advantage": None}
    with pytest.warns(RuntimeWarning, match="leaves out 1 of 2 rollouts") as caught:
        (batch,) = stored([bare, tree(2, 3)]).loader(units=el.Packed(10))
    assert len(caught) == 1 and batch["episode"].tolist() == [1]
    with pytest.raises(el.errors.InvalidArgumentError, match="None of the 2 rollouts has tokens") as error:
        stored([bare, bare]).loader(units=el.Packed(10))
    assert "write_rollout(..., tokens=...)" in error.value.hint


def test_advantages_of_tokens_come_first() -> None:
    """Messages without advantages have that of their rollout; keys that no rollout has are absent."""
    rollout = tree(1, 2, advantage=0.5)
    rollout["messages"][1]["advantages"] = [2.0, 3.0]
    rollout["messages"].append({"message": MODEL, "tokens": [9]})
    rollout["parents"].append(1)
    (batch,) = stored([rollout]).loader(units=el.Packed(10))
    assert batch["advantages"].tolist() == [0, 2, 3, 0.5]
    store = stored([tree(1, 2)])
    (batch,) = store.loader(units=el.Packed(10))
    assert "advantages" not in batch
    with pytest.raises(el.errors.InvalidArgumentError, match="no rollout of the store has advantages"):
        store.loader(units=el.Packed(10), columns=["advantages"])


def test_columns_of_messages_and_rollouts() -> None:
    """Named, they are keys: annotations too. A number of a message is that of its tokens."""
    store = stored([tree(2, 3, advantage=0.5), tree(1, 2)])
    ids = [episode.id for episode in store]
    store.annotate(pl.DataFrame({"episode_id": ids[:1], "teacher": ["large"], "weight": [2]}))
    lists = pl.DataFrame(
        {
            "episode_id": [ids[0], ids[0], ids[1]],
            "t": [0, 1, 1],
            # One for each token of the first message, else one for each sampled token.
            "entropy": [[0.5, 0.25], [1.0, None, 3.0], [4.0, 5.0]],
            "judge": [None, 0.1, 0.2],
        }
    )
    store.annotate(lists, on=("episode_id", "t"))
    columns = ["entropy", "judge", "teacher", "weight", "metadata.group", "metadata.advantage", "episode"]
    (batch,) = store.refresh().loader(units=el.Packed(10), columns=columns)
    assert list(batch) == columns
    assert batch["entropy"].dtype == np.float32
    assert batch["entropy"].tolist() == [0.5, 0.25, 1, 0, 3, 0, 4, 5]
    assert batch["judge"].tolist() == [0, 0, 0.1, 0.1, 0.1, 0, 0.2, 0.2]
    assert batch["teacher"].tolist() == ["large", ""] and batch["weight"].tolist() == [2, 0]
    assert batch["metadata.group"].tolist() == ["a", "b"] and np.isnan(batch["metadata.advantage"][1])
    (padded,) = store[[1, 0]].loader(2, el.Padded(6), columns=columns)
    assert padded["entropy"].tolist() == [[0, 4, 5, 0, 0, 0], [0.5, 0.25, 1, 0, 3, 0]]
    assert padded["teacher"].tolist() == ["", "large"] and padded["episode"].tolist() == [0, 1]
    store.annotate(lists.with_columns(wrong=pl.lit([1.0])).drop("entropy", "judge"), on=("episode_id", "t"))
    with pytest.raises(el.errors.InvalidArgumentError, match="1 values of wrong; its tokens need 0"):
        store.refresh().loader(units=el.Packed(10), columns=["wrong"])


def test_arguments_that_make_no_sense(store: el.EpisodeStore) -> None:
    """They are refused, with what to do instead."""
    cases: list[Any] = [
        ({"weights": "steps"}, r"weights=\.\.\. does not go with Packed"),
        ({"weights": el.Prioritized()}, r"weights=\.\.\. does not go with Packed"),
        ({"agent": "a"}, r"agent=\.\.\. does not go"),
        ({"joint": True}, r"joint=\.\.\. does not go"),
        ({"group": "a"}, r'filter.."group" = '),
        ({"cache": "stream"}, "cache"),
        ({"transitions": "reward > 0"}, "transitions"),
        ({"transforms": [el.ReturnToGo()]}, "derives columns of steps"),
        ({"n_step": 3}, "one kind of unit"),
        ({"window": 3}, "one kind of unit"),
        ({"batch_size": 4}, "one pack"),
        ({"batch_size": el.Batches(1, drop_last=True)}, "one pack"),
        ({"follow": el.Follow()}, "cannot follow"),
        ({"columns": ["input_id"]}, "Did you mean input_ids"),
        ({"columns": ["attention_mask"]}, "no key of a batch of Packed"),
        ({"columns": ["metadata.grop"]}, "Did you mean metadata.group"),
        ({"columns": ["role"]}, "no key of a batch of Packed"),
        ({"columns": ["token_rewards"]}, "no rollout of the store has token_rewards"),
        ({"units": el.Packed(3)}, "7 tokens|more than 3 tokens"),
    ]
    for arguments, message in cases:
        with case((arguments, message)), pytest.raises(el.errors.InvalidArgumentError, match=message):
            store.loader(**{"units": el.Packed(10), **arguments})


@looped(
    "make",
    [
        lambda: el.Packed(0),
        lambda: el.Packed(8, too_long="drop"),  # pyright: ignore[reportArgumentType]
        lambda: el.Padded(8, pad_id=-1),
        lambda: el.Padded(2.5),  # pyright: ignore[reportArgumentType]
    ],
)
def test_kinds_are_checked(make: Callable[[], Any]) -> None:
    """Numbers are whole and in range, names are known."""
    with pytest.raises(el.errors.InvalidArgumentError):
        make()


def test_several_packs_are_refused(store: el.EpisodeStore) -> None:
    """One at a time can be taken and mixed."""
    loader = store.loader(units=el.Packed(10))
    assert loader.take(1)["episode"].tolist() == [0, 3, 5]
    with pytest.raises(el.errors.InvalidArgumentError, match="one pack"):
        loader.take(2)
    halves = [store[:3].loader(units=el.Packed(10)), store[3:].loader(units=el.Packed(10))]
    mixture = el.mix([(half, 1.0) for half in halves], 1, source=True)
    assert [next(iter(mixture))["source"].tolist() for _ in range(4)] == [[0], [1], [0], [1]]


def test_other_stores_are_refused(tmp_path: Path) -> None:
    """Only rollouts have token sequences."""
    store = stored([tree(1, 2)])
    plain = el.create(
        tmp_path / "plain", observation_space=store.observation_space, action_space=store.action_space
    )
    with pytest.raises(el.errors.InvalidArgumentError, match="are no rollouts"):
        plain.loader(units=el.Packed(10))
    with pytest.raises(el.errors.InvalidArgumentError, match="no episode"):
        el.create(tmp_path / "empty", el.Rollouts()).loader(units=el.Packed(10))


def test_another_process_makes_the_same_batches(tmp_path: Path) -> None:
    """By seed and epoch alone; a state from here continues there."""
    written = el.create(tmp_path / "store", el.Rollouts())
    with written.writer() as writer:
        for first, second in LENGTHS:
            writer.write_rollout([USER, MODEL], tokens=[list(range(first)), list(range(second))])
    loader = written.refresh().loader(units=el.Packed(10), shuffle=True, seed=5)
    loader.set_epoch(3)
    next(iter(loader))
    program = (
        "import sys, json, episodelake as el; path, state = sys.argv[1:];"
        "loader = el.open(path).loader(units=el.Packed(10), shuffle=True, seed=5);"
        "loader.load_state_dict(json.loads(state));"
        "print(json.dumps([batch['episode'].tolist() for _ in range(2) for batch in loader]))"
    )
    state = json.dumps(loader.state_dict())
    answer = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store"), state],
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(answer.stdout) == [batch["episode"].tolist() for _ in range(2) for batch in loader]
