"""Distributions that are asked for many decisions at once are those of one decision after the other."""

from types import SimpleNamespace

import numpy as np
import pytest

from leeward import DistributionalPPO
from leeward.backtest import foresight as module
from leeward.backtest.engine import run_policy
from leeward.backtest.foresight import Foresight
from leeward.config.trading import EnvConfig
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import ArgumentError

from ..support.panels import market_of, panel

ALPHA = 0.05


@pytest.fixture(scope="module", params=["MlpLstmPolicy", "MlpPolicy"])
def trained(request):
    """An agent that predicts the next step too, after some updates."""
    market = market_of(panel())
    env = TradingVecEnv(market, 8, config=EnvConfig(episode_bars=50), seed=0)
    model = DistributionalPPO(
        request.param, env, seed=3, device="cpu", n_steps=32, batch_size=64, n_epochs=3, n_quantiles=12,
        learning_rate=3e-3, risk={"alpha": ALPHA},
    )  # fmt: skip
    model.learn(4 * 32 * 8)
    return model, market


def one_by_one(model, market):
    """What the agent says when it is asked before every decision, as it goes."""
    rows = []

    class Asked:
        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            rows.append(model.predict_distribution(observation, state=state, episode_start=episode_start))
            return model.predict(observation, state, episode_start, deterministic)

    run_policy(Asked(), market, EnvConfig(), split="test", alpha=ALPHA)
    return rows[-market.split("test").n_decisions :]


@pytest.mark.parametrize("at_once", [4096, 7])
def test_many_at_once_are_as_one_after_the_other(trained, at_once, monkeypatch):
    model, market = trained
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    result, rows = run_policy(model, market, EnvConfig(), split="test", alpha=ALPHA), one_by_one(model, market)
    for found, wanted in ((result.outlook, rows), (result.outlook_step, [row.step for row in rows])):
        assert len(found.mean) == len(wanted) > 50
        spread = np.ptp([row.mean[0] for row in wanted])
        assert spread > 0.0  # it depends on what is seen, so that another order would be another answer
        same = {"rtol": 1e-5, "atol": 1e-5 * spread}
        np.testing.assert_allclose(found.quantiles, np.concatenate([row.quantiles for row in wanted]), **same)
        np.testing.assert_allclose(found.mean, [row.mean[0] for row in wanted], **same)
        np.testing.assert_allclose(found.var, [row.var(ALPHA)[0] for row in wanted], **same)
        np.testing.assert_allclose(found.cvar, [row.cvar(ALPHA)[0] for row in wanted], **same)
        assert found.levels.tolist() == wanted[0].levels.tolist()
        assert found.weights.tolist() == wanted[0].weights.tolist()


def answers(asked, quantiles=None):
    """A `predict_distribution` that writes down what it is asked."""

    def predict_distribution(observation, state, episode_start):
        n = len(observation)
        asked.append((observation[:, 0].tolist(), state, episode_start.tolist()))
        rows = np.stack([observation[:, 0], observation[:, 0] + 1.0], -1) if quantiles is None else quantiles
        tail = lambda alpha: np.zeros(n)  # noqa: E731
        return SimpleNamespace(levels=np.array([0.25, 0.75]), quantiles=rows, mean=np.zeros(n), var=tail, cvar=tail)

    return predict_distribution


def seen(value):
    return np.full((1, 3), value, np.float32)


def test_a_first_decision_without_a_memory_is_asked_apart_and_memories_stand_side_by_side():
    asked = []
    foresight = Foresight(answers(asked), ALPHA)
    for i in range(4):
        foresight.add(seen(i), None if i == 0 else (np.full((2, 1, 4), 10.0 * i),), np.array([i == 0]))
    outlook, step = foresight.read()
    (first, none, began), (second, _, _), (again, _, _), (others, memory, went_on) = asked
    assert (first, none, began) == ([0.0], None, [True])
    assert second == again == [1.0]
    assert (others, went_on) == ([2.0, 3.0], [False, False])
    assert memory[0].shape == (2, 2, 4)
    assert memory[0][1, :, 0].tolist() == [20.0, 30.0]
    assert outlook.quantiles.tolist() == [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert step is None


@pytest.mark.parametrize("resets", [True, False], ids=["a memory of episodes", "a clock"])
def test_a_policy_that_remembers_in_itself_is_refused(resets):
    remembered = 0.0

    def predict_distribution(observation, state, episode_start):
        started = resets and bool(episode_start[0])
        return answers([])(observation * 0.0 if started else observation + remembered, state, episode_start)

    foresight = Foresight(predict_distribution, ALPHA)
    for i in range(5):
        foresight.add(seen(i), None, np.array([i == 0]))
        remembered += 1.0  # it has decided
    with pytest.raises(ArgumentError, match=r"must give the same for the same .*Keep what the policy remembers in"):
        foresight.read()


def test_states_that_are_no_arrays_are_handed_back_one_at_a_time():
    asked = []
    foresight = Foresight(answers(asked), ALPHA)
    for i, state in enumerate(({"count": 1}, {"count": 2}, (3,))):
        foresight.add(seen(i), state, np.array([False]))
    assert foresight.read()[0].quantiles[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert [state for _, state, _ in asked] == [{"count": 1}, {"count": 2}, (3,)]


@pytest.mark.parametrize("whole", [tuple, list], ids=["arrays that are copied", "asked at once"])
def test_a_memory_that_a_policy_writes_over_is_the_one_before_each_decision(whole):
    def predict_distribution(observation, state, episode_start):
        return answers([])(np.ravel(state[0])[:, None], state, episode_start)

    foresight, memory = Foresight(predict_distribution, ALPHA), whole([np.zeros((1, 1, 1))])
    for i in range(4):
        foresight.add(seen(i), memory, np.array([False]))
        memory[0][:] += 1.0
    assert foresight.read()[0].quantiles[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_first_answer_that_is_wrong_is_refused_at_the_first_decision():
    with pytest.raises(ArgumentError, match=r"quantiles \(1, N\).*for 1 observations, got quantiles \(3, 2\)"):
        Foresight(answers([], quantiles=np.zeros((3, 2))), ALPHA).add(seen(0), None, np.array([False]))


def test_an_answer_for_fewer_decisions_than_were_asked_is_refused():
    foresight = Foresight(answers([], quantiles=np.zeros((1, 2))), ALPHA)
    for i in range(5):  # the first two are asked about at once
        foresight.add(seen(i), None, np.array([False]))
    with pytest.raises(ArgumentError, match=r"quantiles \(3, N\).*for 3 observations, got quantiles \(1, 2\)"):
        foresight.read()
