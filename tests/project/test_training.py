"""The learners of the examples reach what the documentation says they do, in the environment itself.

Returns are those of CartPole's own rewards, played in episodes that nobody recorded. What every
learner has to beat is in the store: the mean return of its episodes.
"""

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

torch = pytest.importorskip("torch")

import gymnasium  # noqa: E402

import cleanrl_dqn  # noqa: E402
import episodelake as el  # noqa: E402
import train  # noqa: E402
from learners.cloning import clone, good_episodes  # noqa: E402
from learners.curves import curve_table, draw_curves  # noqa: E402
from learners.playing import play  # noqa: E402
from learners.q_learning import Settings, learn_values, q_loss  # noqa: E402
from learners.recording import BEHAVIOURS, mean_return, record  # noqa: E402
from learners.sequence_model import SequenceModel, SequencePolicy, learn_sequences  # noqa: E402
from learners.training import Trained  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Torch uses one thread, as the command line has it, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """What the learners learn from."""
    return record(tmp_path_factory.mktemp("training") / "cartpole")


@pytest.fixture(scope="module")
def cloned(store: el.EpisodeStore) -> Trained:
    """Cloned from the best episodes, with a small budget."""
    return clone(store, updates=200, watch_every=100)


@pytest.fixture(scope="module")
def sequences(store: el.EpisodeStore) -> Trained:
    """A sequence model, with a small budget."""
    return learn_sequences(store, updates=400, watch_every=400)


def test_recorded_episodes_are_poor(store: el.EpisodeStore) -> None:
    """Fifty episodes of each behaviour are in the store, and hardly any reaches the limit of 500."""
    names = store.sql("select name, count(*) from episodes join runs using (run_id) group by name").fetchall()
    assert dict(names) == dict.fromkeys(BEHAVIOURS, 50)
    assert mean_return(store) < 60
    assert len(store.filter(pl.col("episode_return") >= 500)) <= 2


def test_playing_counts_the_rewards_of_whole_episodes() -> None:
    """Returns are those of a plain loop over one environment at a time."""

    class PushesWhereItLeans:
        def begin(self, episodes: int) -> None:
            self.lengths = np.zeros(episodes)

        def act(self, observation, reward):
            self.lengths += reward.numpy()
            return (observation[:, 2] > 0).long()

    expected = []
    for seed in (7, 8, 9):
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(int(observation[2] > 0))
            total, done = total + float(reward), terminated or truncated
        expected.append(total)
    np.testing.assert_array_equal(play(PushesWhereItLeans(), 3, first_seed=7), expected)


@pytest.mark.further
def test_cloning_balances(store: el.EpisodeStore, cloned: Trained) -> None:
    """Cloned from the best tenth of the episodes, a policy stays up for 450 of 500 steps or more."""
    assert play(cloned.policy).mean() >= 450 > 4 * mean_return(store)
    before, *_, after = cloned.curve
    assert before.updates == 0 and before.mean_return < 100 < after.mean_return
    assert after.loss < np.log(2)


def test_cloning_learns_from_the_best(store: el.EpisodeStore) -> None:
    """A share of the episodes is those with the highest returns."""
    best = good_episodes(store, 0.1)
    returns = store.episodes.collect()["episode_return"].sort(descending=True)
    assert 20 <= len(best) <= 22
    assert best.episodes.collect()["episode_return"].min() == returns[len(best) - 1]


@pytest.mark.slow
def test_q_learning_balances(store: el.EpisodeStore) -> None:
    """Learnt from all episodes, bad ones too, values lead to 400 of 500 steps or more."""
    learnt = learn_values(store, updates=1500, watch_every=1500)
    assert play(learnt.policy).mean() >= 400 > 4 * mean_return(store)


@torch.no_grad()
def test_q_targets_are_those_of_the_definition(store: el.EpisodeStore) -> None:
    """The loss of a few transitions, one by one: double Q-learning's target, and the conservative term."""
    settings = Settings(n_step=3, gamma=0.9)
    torch.manual_seed(0)
    net, target_net = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    loader = store.loader(
        64,
        n_step=3,
        gamma=0.9,
        columns=["observation", "action", "reward", "next_observation", "discount"],
        shuffle=True,
        transforms=[el.Cast(["reward", "discount"], "float32")],
        output="torch",
    )
    batch = next(iter(loader))
    assert (batch["discount"] == 0).any()
    terms = []
    for i in range(64):
        values = net(batch["observation"][i])
        taken = values[batch["action"][i]]
        best = int(net(batch["next_observation"][i]).argmax())
        following = float(target_net(batch["next_observation"][i])[best])
        target = settings.reward_scale * float(batch["reward"][i]) + float(batch["discount"][i]) * following
        gap = abs(float(taken) - target)
        huber = gap**2 / 2 if gap < 1 else gap - 0.5
        terms.append(huber + settings.conservatism * float(values.exp().sum().log() - taken))
    assert float(q_loss(net, target_net, batch, settings)) == pytest.approx(np.mean(terms), rel=1e-4)


@pytest.mark.slow
def test_sequence_model_balances(store: el.EpisodeStore, sequences: Trained) -> None:
    """Asked for a return of 500, a sequence model reaches 400 or more, which its episodes hardly ever did."""
    assert play(sequences.policy).mean() >= 400 > 4 * mean_return(store)


@pytest.mark.slow
def test_sequence_model_does_as_it_is_told(sequences: Trained) -> None:
    """Asked for less, it reaches less: the return that it is given says how well it is to play."""
    policy = sequences.policy
    assert isinstance(policy, SequencePolicy)
    modest = SequencePolicy(policy.model, policy.normalize, 50.0)
    assert play(modest).mean() < 150 < play(policy).mean()


def test_sequence_model_sees_neither_ahead_nor_padding() -> None:
    """Logits depend on nothing that comes later, and on nothing in the padding."""
    torch.manual_seed(0)
    model = SequenceModel(4, 2, window=6)
    mask = torch.tensor([[False, False, True, True, True, True]])
    window = [torch.randn(1, 6), torch.randn(1, 6, 4), torch.randint(0, 2, (1, 6)), torch.arange(6)[None]]
    logits = model(*window, mask)
    changed = [each.clone() for each in window]
    for each in changed:
        each[:, :2] = 1 - each[:, :2]
        each[:, 5] = 1 - each[:, 5]
    # The action of a step is to be told before it is seen.
    changed[2][:, 4] = 1 - changed[2][:, 4]
    again = model(*changed, mask)
    torch.testing.assert_close(again[:, 2:5], logits[:, 2:5])
    assert not torch.allclose(again[:, 5], logits[:, 5])


@pytest.mark.parametrize(
    ("learn", "updates"),
    [(clone, 20), (learn_values, 20), pytest.param(learn_sequences, 8, marks=pytest.mark.further)],
    ids=["bc", "q", "sequence"],
)
def test_training_can_be_repeated(store: el.EpisodeStore, learn, updates: int) -> None:
    """The same seed gives the same curve and the same weights; another one gives others."""
    first, again, other = (
        curve_table({"": learn(store, updates=updates, watch_every=updates, seed=seed)}) for seed in (0, 0, 1)
    )
    assert first.equals(again, null_equal=True)
    assert not first.equals(other)


@pytest.mark.further
def test_curves_are_drawn(store: el.EpisodeStore, tmp_path: Path) -> None:
    """The SVG has a panel for each learner, titled axes, and a point for each evaluation."""
    cloned, sequences = (
        clone(store, updates=20, watch_every=10),
        learn_sequences(store, updates=2, watch_every=1),
    )
    path = tmp_path / "curves.svg"
    draw_curves({"cloning": cloned, "sequence model": sequences}, 51.3, path)
    root = ElementTree.parse(path).getroot()
    texts = {"".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"cloning", "sequence model", "gradient updates", "mean return of 20 episodes (steps)"} <= texts
    points = [each for each in root.iter() if each.get("aria-roledescription") == "point"]
    assert len(points) == len(cloned.curve) + len(sequences.curve)


def test_command_line_names_the_learners(capsys: pytest.CaptureFixture[str]) -> None:
    """A learner that is not there is refused before anything is recorded, and those that are are named."""
    with pytest.raises(SystemExit):
        train.main(["dreamer"])
    assert "'dreamer'; there are cloning, q-learning, sequence-model" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_command_line_reaches_what_is_stated(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded and trained anew from other seeds, each learner reaches its stated return in 100 episodes."""
    words = ["--store", str(tmp_path / "store"), "--seed", str(seed), "--svg", str(tmp_path / "curves.svg")]
    reached = train.main(words)
    assert reached["cloning"] >= 450
    assert reached["q-learning"] >= 420
    assert reached["sequence-model"] >= 420
    assert capsys.readouterr().out.count("mean return") == 4
    assert len(el.open(tmp_path / "store")) == 200 and (tmp_path / "curves.svg").exists()


@pytest.mark.further
def test_a_single_file_records_and_trains_from_its_store(tmp_path: Path) -> None:
    """Each iteration of the DQN plays better in the end than in the beginning, and its store has them all."""
    store = cleanrl_dqn.main(tmp_path / "store", cleanrl_dqn.Settings(iterations=6))
    means = dict(
        store.sql("select name, avg(length) from episodes join runs using (run_id) group by name").fetchall()
    )
    assert len(means) == 6 and store.episodes.collect()["length"].sum() > 5000
    assert means["iteration 5"] > 2 * means["iteration 0"]
