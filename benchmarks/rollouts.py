"""Rollouts of language agents: packed batches, room, a question and a trainer's step, beside what people do.

Packed batches stand beside numpy's concatenation of the same arrays: the peer has the packs and the arrays
of each rollout in lists. Rollouts in files are JSON Lines, Parquet and ATIF. Times of batches and of the
import are processor time, the others wall time.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

import episodelake as el
from measure import Row, Samples, interleave, scaled
from setting import Setting

TOKENS, TURNS, MEAN = 8192, 3, 300
#: Batches that one repeat times.
BATCHES = 100
GOAL = 1.3
#: Token ids of a prompt and of its answer, and the log-probabilities of the answer.
Rollout = tuple[np.ndarray, np.ndarray, np.ndarray]
NAMES = ("input_ids", "position_ids", "loss_mask", "logprobs", "advantages")


def write(folder: Path, rollouts: int) -> el.EpisodeStore:
    """Write rollouts of three turns, about 900 tokens each, with log-probabilities and an advantage."""
    generator = np.random.default_rng(0)
    store = el.create(folder / "rollouts", el.Rollouts())
    messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}] * TURNS
    with store.writer() as writer:
        for _ in range(rollouts):
            tokens = [
                generator.integers(0, 150_000, size)
                for size in generator.geometric(1 / (MEAN / 2), 2 * TURNS)
            ]
            logprobs = [
                -generator.exponential(size=len(each)) if at % 2 else None for at, each in enumerate(tokens)
            ]
            writer.write_rollout(messages, tokens=tokens, logprobs=logprobs, advantages=generator.normal())
    return store.refresh()


def concatenated(store: el.EpisodeStore, packs: list[np.ndarray]) -> Callable[[], object]:
    """Return the peer: it concatenates the arrays of the rollouts of each pack.

    Args:
        store: whose rollouts have one branch each.
        packs: the rollouts of each pack.
    """
    whole = store.loader(1, el.Padded(TOKENS, too_long="cut"))
    arrays: dict[str, list[np.ndarray]] = {}
    for batch in whole:
        (length,) = batch["sequence_lengths"]
        for name in NAMES:
            arrays.setdefault(name, []).append(batch[name][0, :length].copy())
    numbers = [pack.tolist() for pack in packs]

    def run() -> None:
        for pack in numbers:
            for name in NAMES:
                own = arrays[name]
                np.concatenate([own[number] for number in pack])

    return run


def run(setting: Setting) -> list[Row]:
    """Measure batches of 8192 tokens, and the first batch of a loader."""
    rollouts = 200 if setting.quick else 4_000
    with tempfile.TemporaryDirectory() as folder:
        store = write(Path(folder), rollouts)
        units = el.Packed(TOKENS, too_long="cut")

        def make(output: Any = "numpy") -> Any:
            return store.loader(units=units, shuffle=True, output=output)

        loader, tensors = make(), make("torch")
        peer = concatenated(store, [batch["episode"] for batch in make()][:BATCHES])

        def batches(own: Any) -> Callable[[], object]:
            def run() -> None:
                own.set_epoch(0)
                for number, _ in enumerate(own, 1):
                    if number == BATCHES:
                        break

            return run

        sides = {"ours": batches(loader), "torch": batches(tensors), "peer": peer}
        results = interleave({name: _timed(side) for name, side in sides.items()}, setting.repeats)
        count = min(BATCHES, len(loader))
        work = f"packed batch of {TOKENS:,} tokens"
        theirs = scaled(results["peer"], 1e6 / count)
        rows = [
            Row(work, "us", scaled(results["ours"], 1e6 / count), "numpy concatenation", theirs, GOAL),
            Row(
                f"{work}, tensors", "us", scaled(results["torch"], 1e6 / count), "numpy concatenation", theirs
            ),
        ]
        loading = interleave({"ours": _timed(make)}, setting.repeats)["ours"]
        rows.append(Row(f"loader of {rollouts:,} rollouts", "ms", scaled(loading, 1e3)))
        return [
            *rows,
            *room(Path(folder), setting),
            *step(Path(folder), setting),
            *asked(Path(folder), setting),
            *imported(Path(folder), setting),
        ]


def sampled(generator: np.random.Generator, prompt: int, answer: int) -> Rollout:
    """Token ids of a prompt and an answer, with few common and many rare ones, and the answer's logprobs."""
    ids = np.minimum(generator.zipf(1.2, prompt + answer), 149_999).astype(np.int32)
    logprobs = -(generator.exponential(0.3, answer) ** 3)
    return ids[:prompt], ids[prompt:], logprobs.astype(np.float32)


def written(path: Path, rollouts: list[Rollout]) -> None:
    """Write rollouts of a prompt and an answer, and wait until they are durable and visible."""
    messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
    with el.create(path, el.Rollouts()).writer() as writer:
        for prompt, answer, logprobs in rollouts:
            writer.write_rollout(messages, tokens=[prompt, answer], logprobs=[None, logprobs], rewards=1.0)


def as_lines(rollouts: list[Rollout]) -> str:
    """The same rollouts as JSON Lines."""
    keys = ("prompt_ids", "completion_ids", "logprobs")
    return "\n".join(
        json.dumps({key: each.tolist() for key, each in zip(keys, rollout, strict=True)})
        for rollout in rollouts
    )


def steps_bytes(path: Path) -> int:
    """Bytes of the files of steps of a store."""
    return sum(file.stat().st_size for file in (path / "steps").glob("*.parquet"))


def room(folder: Path, setting: Setting) -> list[Row]:
    """Measure the bytes of a token, and of rollouts of fifty turns beside ATIF."""
    generator = np.random.default_rng(0)
    count = 20 if setting.quick else 200
    rollouts = [sampled(generator, 1_000, 3_000) for _ in range(count)]
    tokens = 4_000 * count
    written(folder / "room", rollouts)
    ours = Samples((steps_bytes(folder / "room") / tokens,))
    packed = pa.Codec("zstd").compress(as_lines(rollouts).encode())
    columns = zip(*rollouts, strict=True)
    table = pa.table({name: list(each) for name, each in zip("pcl", columns, strict=True)})
    pq.write_table(table, folder / "room.parquet", compression="zstd")
    parquet = (folder / "room.parquet").stat().st_size / tokens
    work = "token with float32 log-probability"
    rows = [
        Row(work, "bytes", ours, "JSON Lines, zstd", Samples((len(packed) / tokens,))),
        Row(work, "bytes", ours, "Parquet, zstd", Samples((parquet,)), 2.5 / 3.0),
    ]
    turns = [[sampled(generator, 400, 600) for _ in range(50)] for _ in range(2 if setting.quick else 10)]
    messages = [{"role": "user", "content": "next"}, {"role": "assistant", "content": "done"}] * 50
    with el.create(folder / "turns", el.Rollouts()).writer() as writer:
        for each in turns:
            ids = [part for prompt, answer, _ in each for part in (prompt, answer)]
            numbers = [part for _, _, logprobs in each for part in (None, logprobs)]
            writer.write_rollout(messages, tokens=ids, logprobs=numbers)
    atif = sum(len(pa.Codec("zstd").compress(_atif(each).encode())) for each in turns)
    peer = Samples((atif / len(turns),))
    ours = Samples((steps_bytes(folder / "turns") / len(turns),))
    return [
        *rows,
        Row("rollout of 50 turns", "bytes", ours, "ATIF with prompt_token_ids, zstd", peer, 1 / 20),
    ]


def _atif(turns: list[Rollout]) -> str:
    """A trajectory whose steps repeat the ids of the history, as ATIF has them."""
    history: list[int] = []
    steps = []
    for prompt, answer, logprobs in turns:
        history = history + prompt.tolist()
        metrics = {
            "prompt_token_ids": history,
            "completion_token_ids": answer.tolist(),
            "logprobs": logprobs.tolist(),
        }
        steps.append({"source": "agent", "message": "done", "metrics": metrics})
        history = history + answer.tolist()
    return json.dumps({"schema_version": "ATIF-v1.8", "steps": steps})


def step(folder: Path, setting: Setting) -> list[Row]:
    """Measure the writing of a trainer's step, durable, beside `json.dumps` and a synced file."""
    generator = np.random.default_rng(0)
    count = 32 if setting.quick else 1_024
    rollouts = [sampled(generator, 1_000, 3_000) for _ in range(count)]
    number = iter(range(1_000))

    def ours() -> float:
        begun = time.perf_counter()
        written(folder / f"step-{next(number)}", rollouts)
        return time.perf_counter() - begun

    def lines() -> float:
        begun = time.perf_counter()
        with (folder / "step.jsonl").open("w") as file:
            file.write(as_lines(rollouts))
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - begun

    results = interleave({"ours": ours, "lines": lines}, setting.repeats)
    work = f"step of {count:,} rollouts of 4,000 tokens, durable"
    return [Row(work, "s", scaled(results["ours"], 1), "json.dumps", scaled(results["lines"], 1), 1.0)]


_OURS = """
SELECT tool, avg(reward) AS reward FROM (SELECT DISTINCT episode_id, unnest(tool_names) AS tool FROM messages)
JOIN (SELECT episode_id, reward FROM rollouts) USING (episode_id) GROUP BY tool ORDER BY tool"""
_LINES = """
SELECT tool, avg(reward) AS reward FROM (
    SELECT DISTINCT id, reward, call.function.name AS tool FROM (
        SELECT row_number() OVER () AS id, reward, unnest(messages) AS message FROM read_json($path)
    ), unnest(message.tool_calls) AS _(call)
) GROUP BY tool ORDER BY tool"""


def asked(folder: Path, setting: Setting) -> list[Row]:
    """Measure the mean reward by tool, beside DuckDB over the same rollouts as JSON Lines."""
    generator = np.random.default_rng(0)
    count = 1_000 if setting.quick else 100_000
    path = folder / "asked.jsonl"
    with el.create(folder / "asked", el.Rollouts()).writer() as writer, path.open("w") as file:
        for number in range(count):
            text = "lorem ipsum " * int(generator.integers(5, 60))
            function = {"name": f"tool{generator.integers(5)}", "arguments": json.dumps({"q": number})}
            call = {"id": f"c{number}", "type": "function", "function": function}
            messages = [
                {"role": "user", "content": f"{number} {text}"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": text * 3},
                {"role": "assistant", "content": text},
            ]
            reward = float(generator.random())
            writer.write_rollout(messages, rewards=reward)
            file.write(json.dumps({"messages": messages, "reward": reward}) + "\n")
    store = el.open(folder / "asked")

    def ours() -> list[tuple[Any, ...]]:
        return store.query(_OURS).rows()

    def lines() -> list[tuple[Any, ...]]:
        return duckdb.execute(_LINES, {"path": str(path)}).fetchall()

    if [row[0] for row in ours()] != [row[0] for row in lines()]:
        raise AssertionError("the two sides answer differently")
    sides = {"ours": ours, "lines": lines}
    results = interleave(
        {name: _timed(side, time.perf_counter) for name, side in sides.items()}, setting.repeats
    )
    work = f"mean reward by tool, {count:,} rollouts"
    theirs = scaled(results["lines"], 1e3)
    return [Row(work, "ms", scaled(results["ours"], 1e3), "DuckDB read_json", theirs, 1 / 50)]


def imported(folder: Path, setting: Setting) -> list[Row]:
    """Measure the import of traces of verifiers, durable, beside `orjson.loads` of the same lines."""
    generator = np.random.default_rng(0)
    count = 50 if setting.quick else 1_000
    path = folder / "traces.jsonl"
    with path.open("w") as file:
        for number in range(count):
            file.write(json.dumps(_trace(number, generator)) + "\n")
    targets = iter(range(1_000))

    def ours() -> object:
        return el.import_dataset(path, folder / f"imported-{next(targets)}")

    def lines() -> None:
        with path.open("rb") as file:
            for line in file:
                orjson.loads(line)

    sides = {"ours": ours, "lines": lines}
    results = interleave({name: _timed(side) for name, side in sides.items()}, setting.repeats)
    work = f"import of {count:,} traces of 3,900 tokens"
    return [Row(work, "s", scaled(results["ours"], 1), "orjson.loads", scaled(results["lines"], 1), 2.0)]


def _trace(number: int, generator: np.random.Generator) -> dict[str, Any]:
    """A trace of verifiers with three turns of 300 and 1,000 tokens."""
    nodes: list[dict[str, Any]] = []
    for _ in range(TURNS):
        prompt, answer, logprobs = sampled(generator, MEAN, 1_000)
        for role, ids, numbers in (("user", prompt, None), ("assistant", answer, logprobs)):
            node = {
                "parent": len(nodes) - 1 if nodes else None,
                "message": {"role": role, "content": "lorem ipsum " * (len(ids) // 3)},
                "sampled": numbers is not None,
                "timestamp": float(len(nodes)),
                "token_ids": ids.tolist(),
                "mask": [numbers is not None] * len(ids),
                "logprobs": [] if numbers is None else numbers.astype(float).tolist(),
            }
            nodes.append(node)
    return {
        "version": 1,
        "id": f"t{number}",
        "task": {"type": "Quiz", "data": {}, "key": f"quiz-{number // 8}"},
        "agent": {"config": {"model": "m"}, "name": "solver"},
        "nodes": nodes,
        "calls": [{"node": 1, "finish_reason": "stop", "usage": {"completion_tokens": 1_000}}],
        "rewards": {"answer": {"score": 1.0, "weight": 1.0}},
        "stop_condition": "agent_completed",
    }


def _timed(task: Callable[[], object], clock: Callable[[], float] = time.process_time) -> Callable[[], float]:
    def run() -> float:
        begun = clock()
        task()
        return clock() - begun

    return run
