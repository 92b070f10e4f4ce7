"""Attacks on a model, and the score against their radius."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from leeward import DistributionalPPO
from leeward.backtest import read_backtest, run_backtest
from leeward.backtest.robustness import ATTACKS, FILE, AttackedPolicy, read_curve, robustness_curve, write_curve
from leeward.config.trading import DataConfig, EnvConfig
from leeward.env import Simulation
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import ArgumentError, RunDirectoryError, ShapeError
from leeward.market import Market, prepare
from leeward.report.data import load_run
from leeward.report.sections import sections_of

SLOPE = np.array([2.0, -1.0, 5.0])
MASK = np.array([True, True, False])


class Linear:
    """action = value = slope · s: every attack has a closed form."""

    def attack_surface(self, observation: Any, state: Any = None, episode_start: Any = None) -> Any:
        s, slope = torch.as_tensor(observation, dtype=torch.float64), torch.as_tensor(SLOPE)
        return SimpleNamespace(
            shape=tuple(s.shape),
            device=torch.device("cpu"),
            action_shift=lambda delta: (delta.double() @ slope).square(),
            value=lambda delta: (s + delta) @ slope,
            observation=lambda delta: (s + delta).numpy(),
        )

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> Any:
        return observation @ SLOPE, state


def moved(attack: str, norm: str = "linf", **settings: Any) -> np.ndarray:  # (B, F)
    s = np.arange(12.0).reshape(4, 3)
    policy = AttackedPolicy(Linear(), attack=attack, epsilon=0.1, seed=3, norm=norm, mask=MASK, **settings)
    return policy.perturb(s) - s


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_stays_in_its_ball_and_spares_what_is_masked(attack, norm):
    delta = moved(attack, norm)
    size = np.abs(delta).max(1) if norm == "linf" else np.linalg.norm(delta, axis=1)
    np.testing.assert_allclose(size, 0.1, atol=1e-6)  # each goes to the edge
    assert not delta[:, 2].any()


def test_the_critic_attack_lowers_the_value_as_far_as_the_ball_allows():
    np.testing.assert_allclose(moved("critic"), [[-0.1, 0.1, 0.0]] * 4, atol=1e-7)
    np.testing.assert_allclose(moved("critic", "l2") @ SLOPE, -0.1 * 5**0.5, rtol=0.03)


def test_the_mad_attack_moves_the_action_as_far_as_the_ball_allows():
    np.testing.assert_allclose(np.abs(moved("mad") @ SLOPE), 0.3, atol=1e-6)
    assert (np.abs(moved("random") @ SLOPE) < 0.3 - 1e-6).any()


def test_the_random_attack_depends_on_its_seed_and_a_radius_of_0_on_nothing():
    assert np.array_equal(moved("random"), moved("random"))
    s = np.ones((4, 3))
    clean = AttackedPolicy(Linear(), attack="mad", epsilon=0.0, seed=0)
    assert clean.predict(s)[0].tolist() == (s @ SLOPE).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attack": "madd"}, "unknown attack 'madd'; did you mean 'mad'"),
        ({"norm": "l1"}, "unknown norm 'l1'"),
        ({"epsilon": -0.1}, "epsilon is a radius"),
        ({"steps": 0}, "at least 1 step, got 0"),
    ],
)
def test_a_wrong_attack_is_named(settings, message):
    with pytest.raises(ArgumentError, match=message):
        AttackedPolicy(Linear(), **({"attack": "mad", "epsilon": 0.1, "seed": 0} | settings))


def test_what_a_model_or_a_mask_lacks_is_named():
    with pytest.raises(ArgumentError, match=r"needs a model with attack_surface.*got SimpleNamespace"):
        AttackedPolicy(SimpleNamespace(predict=None), attack="random", epsilon=0.1, seed=0)
    with pytest.raises(ShapeError, match=r"mask needs one entry per feature, \(3,\), got \(2,\)"):
        AttackedPolicy(Linear(), attack="mad", epsilon=0.1, seed=0, mask=MASK[:2]).perturb(np.ones((1, 3)))


# --- a trained agent in a market -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def market() -> Market:
    return prepare(DataConfig(source="sample:control", n_bars=900, features=("return_1",)))


@pytest.fixture(scope="module")
def agent(market) -> DistributionalPPO:
    """Taught the planted signal by cloning, then trained for a moment, so that its critic knows something too."""
    env = TradingVecEnv(market, 8, episode_bars=32, seed=1)
    kwargs = {"net_arch": [16], "lstm_hidden_size": 8}
    model = DistributionalPPO(
        "MlpLstmPolicy", env, n_steps=32, batch_size=64, n_epochs=2, learning_rate=1e-3, seed=1, device="cpu",
        action_distribution="squashed", policy_kwargs=kwargs, adversary={"epsilon": 0.05},
    )  # fmt: skip
    assert model.engine.state_adversary is not None and model.engine.state_adversary.features.mask is not None
    assert model.engine.state_adversary.features.mask.tolist() == env.attackable.tolist()
    column = [name.rpartition("/")[2] for name in env.observation_names].index("feature_signal")
    observation, seen = env.reset(), []
    for _ in range(64):
        seen.append(observation[0].copy())
        observation = env.step(np.full((8, 1), 0.5, np.float32))[0]
    x = np.array(seen)
    model.pretrain(x, (x[:, [column]] > 0.0).astype(np.float32), epochs=120, batch_size=32, learning_rate=1e-2)
    model.learn(3 * 32 * 8)
    assert model.last_metrics["adversary/robust_kl"] > 0.0
    return model


def test_attacks_on_a_trained_agent_do_what_they_are_for(agent, market):
    simulation = Simulation(market, EnvConfig(), n_envs=16, seed=5)
    seen = simulation.restart()
    mask = simulation.attackable
    _, state = agent.predict(seen, deterministic=True)
    seen = simulation.step(np.full((16, 1), 0.5)).observations
    surface = agent.attack_surface(seen, state)
    with torch.no_grad():
        clean = surface.value(torch.zeros(surface.shape))
        np.testing.assert_allclose(clean, agent.predict_distribution(seen, state).mean, atol=1e-6)
        for norm in ("linf", "l2"):
            found = {}
            for attack in ATTACKS:
                policy = AttackedPolicy(agent, attack=attack, epsilon=0.2, seed=0, norm=norm, mask=mask)
                bent = policy.perturb(seen, state)
                assert np.array_equal(bent[:, ~mask], seen[:, ~mask])
                found[attack] = torch.as_tensor(bent - seen)
            lowered = surface.value(found["critic"])
            assert float((lowered <= clean).float().mean()) >= 0.95
            assert float(lowered.mean()) < float(surface.value(found["random"]).mean())
            shifts = {attack: float(surface.action_shift(delta).mean()) for attack, delta in found.items()}
            assert shifts["mad"] > shifts["random"] and shifts["mad"] > 0.99 * shifts["critic"]


def test_a_surface_of_one_observation_gives_one_back(agent, market):
    one = Simulation(market, EnvConfig(), seed=5).restart()[0]
    bent = AttackedPolicy(agent, attack="mad", epsilon=0.1, seed=0).perturb(one)
    assert bent.shape == one.shape and np.abs(bent - one).max() == pytest.approx(0.1, abs=1e-5)


@pytest.fixture(scope="module")
def curve(agent, market):
    return robustness_curve(agent, market, EnvConfig(), split="validation", epsilons=(0.5, 3.0), steps=3)


def test_the_score_falls_under_attack_and_faster_than_under_noise(curve):
    assert curve.epsilons == (0.0, 0.5, 3.0) and set(curve.scores) == set(ATTACKS)
    assert all(scores[0] == curve.clean for scores in curve.scores.values())
    assert min(curve.scores["mad"]) < curve.clean
    assert curve.scores["mad"][-1] < curve.scores["random"][-1]


def test_the_same_curve_comes_out_again(agent, market, curve):
    again = robustness_curve(
        agent, market, EnvConfig(), split="validation", epsilons=(0.5,), attacks=("mad", "random"), steps=3
    )
    for attack, scores in again.scores.items():
        assert scores == curve.scores[attack][:2]


def test_a_curve_is_stored_beside_its_backtest_and_shown(agent, market, curve, tmp_path):
    folder = tmp_path / "run" / "backtest" / "validation"
    backtest = run_backtest(
        agent, market, EnvConfig(), split="validation", rng=np.random.default_rng(0), n_offsets=20, n_draws=20
    )
    backtest.write(folder)
    assert read_curve(folder) is None
    assert "robustness" not in [section.key for section in sections_of(load_run(tmp_path / "run"), None)]
    write_curve(folder, curve)
    assert read_curve(folder) == curve
    sections = {section.key: section for section in sections_of(load_run(tmp_path / "run"), None)}
    (figure,) = sections["robustness"].figures
    assert [trace["name"] for trace in figure.data] == ["random noise", "towards low values", "towards other actions"]
    assert figure.data[2]["x"] == [0.0, 0.5, 3.0]
    np.testing.assert_allclose(figure.data[2]["y"], curve.scores["mad"], rtol=1e-5)
    assert read_backtest(folder).metrics.split == "validation"
    backtest.write(folder)  # another backtest in the same place: the curve was of another policy
    assert read_curve(folder) is None
    (folder / FILE).write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"robustness.json: not a robustness curve: Field required"):
        read_curve(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilons": (0.2, 0.1)}, "epsilons must be positive and rise"),
        ({"epsilons": (0.0, 0.1)}, "epsilons must be positive and rise"),
        ({"attacks": ()}, "at least one attack"),
        ({"score": "sharp"}, "unknown score 'sharp'; did you mean 'sharpe'"),
    ],
)
def test_a_wrong_curve_is_named(settings, message, agent, market):
    with pytest.raises(ArgumentError, match=message):
        robustness_curve(agent, market, EnvConfig(), split="validation", **settings)
