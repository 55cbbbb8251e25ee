"""`TorchModule`: columns of a torch module beside a plain loop with the same module."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el
from effort import looped
from loader_batches import BOX, NESTED, random_store

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only where torch is

LENGTHS = [5, 1, 17, 9, 30, 2, 11]
ENDINGS = ["terminated", "truncated", "cut", "terminated", "truncated", "both", "cut"]


class Policy(nn.Module):
    """Values and log-probabilities of seven actions; dropout would show a wrong mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5))
        self.value, self.logits = nn.Linear(16, 1), nn.Linear(16, 7)
        self.offset = nn.Parameter(torch.ones(()))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return values, shape (n,)."""
        return self.value(self.body(observation))[:, 0] + self.offset

    def log_prob(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of each action, shape (n,)."""
        return torch.log_softmax(self.logits(self.body(observation)), -1).gather(1, action[:, None])[:, 0]

    def both(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values and logits."""
        return self(observation), self.logits(self.body(observation))

    def named(self, *, seen: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return values and other things by name."""
        return {"value": self(seen), "seen": seen, "offset": self.offset}


class Identity(nn.Module):
    """Returns what it gets, or its weight for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))

    def forward(self, given: Any) -> Any:
        """Return the input itself."""
        return given

    def broadcast(self, given: torch.Tensor) -> torch.Tensor:
        """Return a view of the weight."""
        return self.weight.expand(len(given), 3)

    def scalar(self, given: torch.Tensor) -> torch.Tensor:
        """Return one number for all rows."""
        return given.sum()

    def raising(self, given: torch.Tensor) -> torch.Tensor:
        """Raise an error of its own."""
        raise torch.OutOfMemoryError("no memory left")


class Reader(nn.Module):
    """Reads nested observations."""

    def forward(self, observation: Any) -> torch.Tensor:
        """Return a sum over all parts."""
        number, vector = observation["pair"]
        return observation["image"].float().sum((1, 2)) + number + vector.sum(1)


@pytest.fixture
def policy() -> Policy:
    """A policy with other statistics than those of its creation."""
    torch.manual_seed(3)
    made = Policy()
    made(torch.randn(64, 3))
    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Seven episodes of three numbers, 75 transitions."""
    return random_store(tmp_path_factory.mktemp("modules") / "store", LENGTHS, ENDINGS, BOX)


def plain(policy: Policy, method: str, *columns: np.ndarray) -> np.ndarray:
    """What a copy of the module gives in evaluation mode."""
    with torch.no_grad():
        return getattr(copy.deepcopy(policy).eval(), method)(*map(torch.tensor, columns)).numpy()


def close(found: Any, wanted: Any) -> None:
    """Compare up to the rounding that another batch size brings."""
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.further
def test_transitions_get_what_a_loop_over_the_episodes_gets(store: el.EpisodeStore, policy: Policy) -> None:
    """Values and log-probabilities of all transitions are those of a loop, in every kind of output."""
    values = np.concatenate([plain(policy, "forward", each.observations[:-1]) for each in store])
    chances = np.concatenate(
        [plain(policy, "log_prob", each.observations[:-1], each.actions) for each in store]
    )
    modules = [
        el.TorchModule(policy, "observation", "value"),
        el.TorchModule(policy.log_prob, ["observation", "action"], "log_prob", max_rows=5),
        el.TorchModule(policy.named, {"seen": "observation"}, ["value", "seen"]),
    ]
    assert repr(modules[1]) == "TorchModule(Policy.log_prob, ('observation', 'action'), ('log_prob',))"
    outputs = ("numpy", "torch", "tensordict") if _has_tensordict() else ("numpy", "torch")
    for output in outputs:
        batches = list(store.loader(16, transforms=modules, output=output))
        kind = np.ndarray if output == "numpy" else torch.Tensor
        assert {type(batch["value"]) for batch in batches} == {kind}
        assert not any(batch["value"].requires_grad for batch in batches if kind is torch.Tensor)
        close(np.concatenate([batch["value"] for batch in batches]), values)
        close(np.concatenate([batch["log_prob"] for batch in batches]), chances)
        seen = np.concatenate([batch["seen"] for batch in batches])
        np.testing.assert_array_equal(seen, np.concatenate([each.observations[:-1] for each in store]))


def _has_tensordict() -> bool:
    try:
        import tensordict  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.mark.further
def test_windows_and_episodes_are_folded_without_their_padding(
    store: el.EpisodeStore, policy: Policy
) -> None:
    """With axes=2 a module gets the real steps of windows and whole episodes, and padding becomes 0."""
    modules = [
        el.TorchModule(policy.both, "observation", ["value", "logits"], axes=2, max_rows=7),
        el.TorchModule(policy.log_prob, ["observation", "action"], "log_prob", axes=2),
    ]
    batch = next(iter(store.loader(100, el.Episodes(), transforms=modules)))
    assert batch["value"].shape == (7, 31) and batch["log_prob"].shape == (7, 30)
    assert batch["logits"].shape == (7, 31, 7)
    for number, episode in enumerate(store):
        steps = episode.length
        close(batch["value"][number, : steps + 1], plain(policy, "forward", episode.observations))
        wanted = plain(policy, "log_prob", episode.observations[:-1], episode.actions)
        close(batch["log_prob"][number, :steps], wanted)
        assert not batch["value"][number, steps + 1 :].any() and not batch["log_prob"][number, steps:].any()

    units = el.Windows(4, pad="left")
    for output in ("numpy", "torch"):
        batch = next(iter(store.loader(100, units, transforms=modules, output=output)))
        found = {key: np.asarray(value) for key, value in batch.items()}
        mask = found["mask"]
        seen, done = found["observation"][mask], found["action"][mask]
        close(found["value"][mask], plain(policy, "forward", seen))
        close(found["log_prob"][mask], plain(policy, "log_prob", seen, done))
        assert not mask.all() and not found["value"][~mask].any() and not found["log_prob"][~mask].any()


def test_nested_observations_reach_the_module_as_dicts_and_tuples(tmp_path: Path) -> None:
    """A module gets nested observations as the space nests them, or a part by its dotted name."""
    nested = random_store(tmp_path / "store", [4, 3], ["terminated"] * 2, NESTED)
    modules = [
        el.TorchModule(Reader(), "next_observation", "sum"),
        el.TorchModule(Identity(), "observation.pair.1", "vector"),
        el.TorchModule(Reader(), "observation", "total", axes=1),
    ]
    for output in ("numpy", "torch"):
        (batch,) = nested.loader(100, transforms=modules, output=output)
        wanted, vectors = [], []
        for episode in nested:
            number, vector = episode.observations["pair"]
            wanted.append(episode.observations["image"].sum((1, 2)) + number + vector.sum(1))
            vectors.append(vector[:-1])
        close(batch["sum"], np.concatenate([each[1:] for each in wanted]))
        close(batch["total"], np.concatenate([each[:-1] for each in wanted]))
        np.testing.assert_array_equal(batch["vector"], np.concatenate(vectors))


@pytest.mark.parametrize("how", ["here", "prefetch", "workers", "take", "mix", "priorities", "follow"])
def test_each_batch_has_the_weights_of_the_moment_it_is_taken(
    store: el.EpisodeStore, policy: Policy, how: str
) -> None:
    """A change of the weights shows in the very next batch, whoever made the batch and however early."""
    loader, other = (
        store.loader(
            el.Batches(8, prefetch=3 if how == "prefetch" else 0),
            columns=["observation"],
            transforms=[el.Cast("observation", "float32"), el.TorchModule(policy, "observation", "value")],
            weights=el.Prioritized() if how == "priorities" else None,
            follow=el.Follow() if how == "follow" else None,
        )
        for _ in range(2)
    )
    if how == "workers":
        loader = loader.torch_loader(1)
    elif how == "mix":
        loader = el.mix([(loader, 0.5), (other, 0.5)], 8)
    batches = (loader.take(8) for _ in range(4)) if how == "take" else iter(loader)
    with torch.no_grad():
        for step, batch in zip(range(4), batches, strict=False):
            close(batch["value"], plain(policy, "forward", np.asarray(batch["observation"])))
            policy.offset.add_(step + 1.0)


def test_the_module_stays_in_its_modes(store: el.EpisodeStore, policy: Policy) -> None:
    """Each submodule is in its own mode afterwards, also if the module raises, and no statistics change."""
    policy.train()
    policy.body[1].eval()
    modes = [part.training for part in policy.modules()]
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    next(iter(store.loader(16, transforms=[el.TorchModule(policy, "observation", "value")])))
    with pytest.raises(RuntimeError, match="same dtype"):
        next(iter(store.loader(16, transforms=[el.TorchModule(policy, "reward", "value")])))
    assert [part.training for part in policy.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("how", ["loader", "take", "mix"])
def test_a_module_that_raises_loses_no_batch(store: el.EpisodeStore, how: str) -> None:
    """The module's own error comes with a note of what it got, and the same batch follows."""
    identity = Identity()
    made = store.loader(10, columns=["t", "reward"], transforms=[el.TorchModule(identity, "reward", "same")])
    loader = el.mix([(made, 1.0)], 10) if how == "mix" else made
    wanted = np.concatenate([np.arange(length) for length in LENGTHS])

    def taken() -> Any:
        return loader.take(10) if how == "take" else next(iter(loader))

    assert taken()["t"].tolist() == wanted[:10].tolist()
    object.__setattr__(made._modules[0], "module", identity.raising)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="no memory left") as caught:
            taken()
        assert "TorchModule(Identity.raising" in caught.value.__notes__[0]
        assert "float64 (10,) on cpu" in caught.value.__notes__[0]
    object.__setattr__(made._modules[0], "module", identity)
    assert taken()["t"].tolist() == wanted[10:20].tolist()


def test_new_columns_share_memory_with_nothing(store: el.EpisodeStore) -> None:
    """Changing a new column in place changes neither another column nor a weight."""
    identity = Identity()
    modules = [
        el.TorchModule(identity, "observation", "same"),
        el.TorchModule(identity.broadcast, "observation", "weight"),
    ]
    for output in ("numpy", "torch"):
        batch = next(iter(store.loader(8, transforms=modules, output=output)))
        kept = np.asarray(batch["observation"]).copy()
        batch["same"][:] = -1
        batch["weight"][:4] = -1
        np.testing.assert_array_equal(batch["observation"], kept)
        assert batch["weight"][4:].tolist() == [[0, 1, 2]] * 4
        assert identity.weight.tolist() == [0, 1, 2]


def test_tensors_stay_on_the_device_of_the_batch(store: el.EpisodeStore) -> None:
    """A batch of tensors on a device keeps them there, and values of narrow types reach numpy."""
    on_meta = el.TorchModule(nn.Linear(3, 2, device="meta"), "observation", "value")
    batch = next(iter(store.loader(8, transforms=[on_meta], output=el.Output("torch", device="meta"))))
    assert batch["value"].device.type == "meta" and batch["value"].shape == (8, 2)
    narrow = nn.Linear(3, 2, dtype=torch.bfloat16)
    cast = type("Casting", (nn.Module,), {"forward": lambda self, given: narrow(given.bfloat16())})()
    found = el.TorchModule(cast, "observation", "value", device="cpu")({"observation": np.ones((4, 3), "f4")})
    assert found["value"].dtype == np.float32 and found["value"].shape == (4, 2)
    with pytest.raises(el.errors.InvalidArgumentError, match="torch cannot use it here"):
        el.TorchModule(cast, "observation", "value", device="nowhere")


@looped(
    ("module", "arguments", "message"),
    [
        (lambda: lambda given: given, ("observation", "x"), "expected a torch.nn.Module"),
        (lambda: nn.Linear, ("observation", "x"), "expected a torch.nn.Module"),
        (Identity, ((), "x"), "expected the name of a key"),
        (Identity, ("observation", ["x", "x"]), "two have the same name"),
        (Identity, ("observation", "x", None, 0), "axes=0"),
        (Identity, ("observation", "x", None, 1, 0), "max_rows=0"),
        (Identity, ("observatoin", "x"), "There is no 'observatoin' here. There are: observation, action"),
        (lambda: Identity().scalar, ("observation", "x"), r"'x' with shape \(\); expected \(8, ...\)"),
        (lambda: Policy().both, ("observation", "x"), "returned 2 values; expected 1"),
        (Identity, ("observation", ["x", "y"]), "returned a Tensor; expected 2"),
        (
            lambda: Policy().named,
            ({"seen": "observation"}, ["x"]),
            "returned no 'x'. It returned: value, seen",
        ),
        (lambda: Policy().named, ({"seen": "observation"}, ["offset"]), r"'offset' with shape \(\)"),
        (
            Identity,
            (["observation", "reward"], "x", None, 2),
            r"same 2 leading axes; there are observation: ",
        ),
    ],
)
def test_errors_name_the_problem(store: el.EpisodeStore, module: Any, arguments: Any, message: str) -> None:
    """A wrong argument, column or result raises an error that names it."""
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        next(iter(store.loader(8, transforms=[el.TorchModule(module(), *arguments)])))


def test_results_must_be_tensors(store: el.EpisodeStore) -> None:
    """A module that returns a distribution is refused with advice."""
    normal = type("Normal", (nn.Module,), {"forward": lambda self, given: torch.distributions.Normal(0, 1)})
    with pytest.raises(el.errors.InvalidArgumentError, match="returned a Normal for 'x'; expected a tensor"):
        next(iter(store.loader(8, transforms=[el.TorchModule(normal(), "observation", "x")])))


def test_places_where_a_module_cannot_run_are_refused(store: el.EpisodeStore) -> None:
    """A module comes last, and is refused where other processes or other packages would get its batches."""
    module = el.TorchModule(Identity(), "observation", "same")
    with pytest.raises(el.errors.InvalidArgumentError, match="Put the module last"):
        store.loader(8, transforms=[module, el.Clip("reward", -1, 1)])
    with pytest.raises(el.errors.InvalidArgumentError, match="Put it first"):
        store.loader(8, transforms=[module, el.ReturnToGo()])
    loader = store.loader(8, transforms=[module])
    for refused in (loader.iterable_dataset, loader.map_dataset):
        with pytest.raises(el.errors.InvalidArgumentError, match="torch_loader"):
            refused()
    with pytest.raises(el.errors.InvalidArgumentError, match=r"same el\.TorchModule"):
        el.mix([(loader, 0.5), (store.loader(8), 0.5)])


class Wider(nn.Module):
    """Returns another form for a single row than for several."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return two numbers a row, or one of another dtype for the last row."""
        return given[:, :2] if len(given) > 1 else given[:, :1].double()


def test_chunks_of_several_forms_are_refused() -> None:
    """With `max_rows` a module sees several chunks; all must give one dtype and shape."""
    transform = el.TorchModule(Wider(), "observation", "value", max_rows=4)
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"float64 of shape \(n, 1\) from row 8 on, and as"
    ):
        transform({"observation": np.ones((9, 3), "f4")})
