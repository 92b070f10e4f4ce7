"""Replicas that share the envs learn what one process with all envs learns.

Where a minibatch is the whole rollout and value targets have no noise of their own, only the rounding may differ. Envs
differ in scale by a factor of 100, so whatever is taken from one share alone (a mean, a tail, a stop) shows.
"""

from functools import cache
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from leeward import DistributionalPPO
from leeward.telemetry.rules import RULES

from ..support.replicas import STEPS, as_one, as_several, settings
from ..support.small_models import states
from ..support.walk_envs import ENVS, MaskedWalk, functions

WHOLE: dict[str, Any] = {"batch_size": None, "value_targets": "scalar", "max_grad_norm": 5.0, "vf_coef": 1e-4}
SGD: dict[str, Any] = {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {"momentum": 0.9}}
CASES: dict[str, dict[str, Any]] = {
    "LSTM, quantiles": {},
    "GRU, one scalar critic": {"critic": "scalar", "twin_critics": False, "policy_kwargs": SGD | {"cell": "gru"}},
    "no memory, categorical": {"policy": "MlpPolicy", "critic": "categorical", "n_atoms": 11},
    "KL stop": {"target_kl": 1e-3, "n_epochs": 8},
    "burn-in, refreshed memory, micro-batches": {"burn_in": 2, "refresh_memory": True, "micro_batch_size": 8},
    "normalised observations, gradient scaling": {
        "policy_kwargs": SGD | {"normalize_observations": True},
        "vgs": {"warmup": 1, "strength": 1.0, "beta": 0.9},
    },
    "schedules that look at the update": {
        "ent_coef": 0.02,
        "entropy": {"end": 0.002, "plateau_updates": 2, "plateau_slope": 10.0},
        "kl_penalty": {"target": 1e-6},
        "awr": {"coef": 0.1},
        "clip_range_vf": 0.3,
    },
    "advantages by env": {"normalize_advantage": "per_env"},
    "two constraints": {
        "actions": "box",
        "risk": [
            {"alpha": 0.4, "limit": 2.0, "binds": "deployed", "deployed_share": 0.3},
            {"measure": "episode_return", "alpha": 0.9, "limit": 60.0, "controller": "dual", "cvar_weight": 0.1},
        ],
    },
    "action masks": {"kind": MaskedWalk},
    "gSDE": {"actions": "box", "use_sde": True, "sde_sample_freq": 5},
}


def run_of(name: str) -> dict[str, Any]:
    """The arguments of a case, envs and steps among them."""
    case = {"policy_kwargs": SGD} | CASES[name]
    envs = functions(kind=case.pop("kind", MaskedWalk.__base__), actions=case.pop("actions", "discrete"))
    return {"envs": envs, "steps": 3 * ENVS * STEPS} | settings(**({"learning_rate": 0.1} | WHOLE | case))


@cache
def learned_alone(name: str) -> DistributionalPPO:
    return as_one(**run_of(name))


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return|multiplier is at)")
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_several_processes_learn_what_one_learns(name, size):
    alone, replicas = learned_alone(name), as_several(size, **run_of(name))
    first = replicas[0]
    assert first.num_timesteps == alone.num_timesteps == 3 * ENVS * STEPS
    for replica in replicas[1:]:
        assert all(map(torch.equal, replica.policy.state_dict().values(), first.policy.state_dict().values()))
        assert states(replica) == states(first)
    assert_close(dict(first.policy.state_dict()), dict(alone.policy.state_dict()), atol=2e-5, rtol=2e-4)
    assert_close(_numbers(states(first)), _numbers(states(alone)), atol=1e-6, rtol=1e-3)
    assert first.last_metrics.keys() == alone.last_metrics.keys()
    for metric in COMPARED & alone.last_metrics.keys():
        assert first.last_metrics[metric] == pytest.approx(alone.last_metrics[metric], rel=1e-2, abs=1e-5), metric
    assert sorted(_lengths(first)) == sorted(_lengths(alone))


def test_two_processes_act_as_one_with_all_envs_and_learn_the_same_from_it():
    run = {"envs": functions(), "steps": ENVS * STEPS} | settings(**WHOLE, learning_rate=1e-3, n_epochs=1)
    alone, replicas = as_one(**run), as_several(2, **run)
    actions = torch.cat([replica.rollout_buffer.actions for replica in replicas], dim=1)
    assert torch.equal(actions, alone.rollout_buffer.actions)
    assert_close(dict(replicas[0].policy.state_dict()), dict(alone.policy.state_dict()), atol=1e-5, rtol=0)


@pytest.mark.parametrize("batch_size", [20, 7])
def test_replicas_stay_equal_where_shares_have_other_numbers_of_sequences(batch_size):
    # 7 steps a minibatch and sequences of 4 that episodes cut further: some shares run out of sequences before others.
    arguments = settings(batch_size=batch_size, learning_rate=0.01)
    first, *others = as_several(3, functions(), 2 * ENVS * STEPS, **arguments)
    for other in others:
        assert all(map(torch.equal, other.policy.state_dict().values(), first.policy.state_dict().values()))
        assert states(other) == states(first)
        # The first process judges the numbers of all, which are the same in each.
        judged = {rule.series.name for rule in RULES.values() if rule.series is not None}
        judged |= {rule.beside[0].name for rule in RULES.values() if rule.beside is not None}
        assert other.last_metrics.keys() == first.last_metrics.keys() - judged


def test_what_is_not_finite_in_one_process_is_left_out_and_the_others_make_up_for_it():
    def spoil(model: DistributionalPPO) -> None:
        evaluate, calls = model.engine.updater._evaluate_actor, []

        def spoiled(*arguments: Any) -> Any:
            calls.append(None)
            found = evaluate(*arguments)
            return found._replace(log_prob=found.log_prob * torch.nan) if len(calls) == 2 else found

        if model.processes.group.rank == 1:
            model.engine.updater._evaluate_actor = spoiled

    first, second = as_several(2, functions(), ENVS * STEPS, prepare=spoil, **settings(learning_rate=0.01))
    assert first.last_metrics["train/skipped_minibatches"] == 1.0
    assert first.engine.updater.pipeline.guard.consecutive == 0
    assert all(map(torch.equal, first.policy.state_dict().values(), second.policy.state_dict().values()))


COMPARED = {
    "train/approx_kl",
    "train/advantage_std_raw",
    "train/advantage_min",
    "train/advantages_norm_max_abs",
    "train/explained_variance",
    "train/grad_norm_raw",
    "train/kl_stop_epoch",
    "train/loss",
    "train/policy_entropy",
    "train/policy_entropy_max",
    "train/ret_mean",
    "train/ret_std",
    "train/skipped_minibatches",
    "risk/cvar_measured",
    "risk/multiplier",
    "risk/tail_samples",
}


def _numbers(state: Any) -> Any:
    """Only what is counted or measured, in the order it stands."""
    if isinstance(state, dict):
        return [number for value in state.values() for number in _numbers(value)]
    if isinstance(state, list):
        return [number for value in state for number in _numbers(value)]
    return [float(state)] if isinstance(state, int | float) else []


def _lengths(model: Any) -> list[float]:
    return [info["l"] for info in model.ep_info_buffer]
