"""Record the files of `rllib/` with RLlib 2.60: its offline runner, `JsonWriter` and Ray Data.

Run it in RLlib's own environment, with msgpack-numpy and lz4 installed: `python make_rllib.py`. `truth.json`
has the values of the episodes that RLlib returned while it recorded them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.offline.json_writer import JsonWriter
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch, concat_samples

TARGET = Path(__file__).parent / "rllib"


def recorded(name: str, *, chunk: int | None, **offline: Any) -> list[Any]:
    """Record CartPole into a folder, and return two episodes or three chunks."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=0, batch_mode="complete_episodes" if chunk is None else "truncate_episodes"
        )
        .offline_data(output=str(TARGET / name), **offline)
        .debugging(seed=7)
    )
    runner = OfflineSingleAgentEnvRunner(config=config, worker_index=0)
    found = []
    if chunk is None:
        found = runner.sample(num_episodes=2, random_actions=True)
    else:
        for _ in range(3):
            found += runner.sample(num_timesteps=chunk, random_actions=True)
    runner.stop()
    return found


def truth(episodes: list[Any]) -> list[dict[str, Any]]:
    """The values of episodes as plain lists, chunks of one episode joined."""
    joined: dict[str, dict[str, Any]] = {}
    for each in episodes:
        observations = np.asarray(each.get_observations()).tolist()
        own = joined.setdefault(each.id_, {"id": each.id_, "observations": observations[:1]})
        own["observations"] += observations[1:]
        own["actions"] = own.get("actions", []) + np.asarray(each.get_actions()).tolist()
        own["rewards"] = own.get("rewards", []) + np.asarray(each.get_rewards()).tolist()
        own["terminated"], own["truncated"] = bool(each.is_terminated), bool(each.is_truncated)
    return list(joined.values())


def sample_batches() -> list[SampleBatch]:
    """Batches of the old API stack: the episodes 11, 12 and 13, cut and merged as workers do."""
    found = []
    for number, length in enumerate((4, 3, 5)):
        steps = np.arange(length + 1)
        values = np.stack([np.full(length + 1, number), steps], axis=1).astype(np.float32)
        found.append(
            SampleBatch(
                {
                    "obs": values[:-1],
                    "new_obs": values[1:],
                    "actions": steps[:-1] % 2,
                    "rewards": steps[1:].astype(np.float32),
                    "terminateds": steps[1:] == (length if number < 2 else 99),
                    "truncateds": steps[1:] == (length if number == 2 else 99),
                    "infos": [{"force": 0.5 * step} for step in steps[1:].tolist()],
                    "eps_id": np.full(length, 11 + number),
                    "unroll_id": np.full(length, 0),
                    "agent_index": np.full(length, 0),
                    "t": steps[:-1],
                    "action_logp": -steps[1:].astype(np.float32),
                }
            )
        )
    merged = concat_samples(found)
    return [merged[:6], merged[6:]]


def main() -> None:
    """Write everything."""
    shutil.rmtree(TARGET, ignore_errors=True)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().read_op_min_num_blocks = 1
    told = {
        "rows": truth(recorded("rows", chunk=None, output_write_episodes=False, output_compress_columns=[])),
        "chunks": truth(
            recorded("chunks", chunk=12, output_write_episodes=False, output_compress_columns=[])
        ),
        "compressed": truth(
            recorded("compressed", chunk=None, output_write_episodes=False, output_compress_columns=["obs"])
        ),
        "episodes": truth(recorded("episodes", chunk=None, output_write_episodes=True)),
        "episode_chunks": truth(recorded("episode_chunks", chunk=12, output_write_episodes=True)),
    }
    (TARGET / "truth.json").write_text(json.dumps(told))
    batches = sample_batches()
    for name, columns in (("json", []), ("json_compressed", ["obs", "new_obs"])):
        writer = JsonWriter(str(TARGET / name), compress_columns=columns)
        for batch in batches:
            writer.write(batch)
    writer = JsonWriter(str(TARGET / "json_agents"), compress_columns=[])
    writer.write(MultiAgentBatch({"walker": batches[0], "chaser": batches[1]}, 6))
    rows = [{name: column.tolist() for name, column in batch.items() if name != "infos"} for batch in batches]
    ray.data.from_items(rows).write_parquet(str(TARGET / "batches"))


if __name__ == "__main__":
    main()
