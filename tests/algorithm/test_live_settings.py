"""Every argument of the constructor, assigned on a live model: it acts from the next update on, or raises at once.

To act is to do what a model with that argument would have done: the live model and one that is loaded from the same
moment with the other value end with the same bits, and without the change both would have ended elsewhere.
"""

import copy
import inspect
import io
from typing import Any

import pytest
import torch
from stable_baselines3.common.utils import LinearSchedule

from leeward import DistributionalPPO
from leeward.config.learning import Risk
from leeward.config.settings import Settings
from leeward.errors import ArgumentError, ConfigError

from ..support.staggered_envs import earning, staggered

ARGUMENTS = [name for name in inspect.signature(DistributionalPPO).parameters if name != "_init_setup_model"]
RISK = {"alpha": 0.2, "limit": -0.5}
# argument -> (what the model is built with beside the rest, the new value)
ACT: dict[str, tuple[dict[str, Any], Any]] = {
    "learning_rate": ({}, 3e-3),
    "critic_learning_rate": ({"critic_learning_rate": 1e-3}, 5e-3),
    "n_steps": ({}, 31),
    "batch_size": ({}, 40),
    "micro_batch_size": ({}, 7),
    "n_epochs": ({}, 3),
    "gamma": ({"risk": RISK}, 0.5),
    "gae_lambda": ({"risk": RISK}, 0.3),
    "clip_range": ({"learning_rate": 1e-2}, 0.01),
    "clip_range_vf": ({"value_clip": {"radius": 0.3}, "learning_rate": 1e-2}, 0.01),
    "normalize_advantage": ({}, "none"),
    "ent_coef": ({}, 0.1),
    "vf_coef": ({}, 2.0),
    "max_grad_norm": ({}, 0.01),
    "sde_sample_freq": ({"use_sde": True}, 3),
    "target_kl": ({"learning_rate": 1e-2}, 1e-6),
    "kappa": ({}, 0.5),
    "value_targets": ({}, "scalar"),
    "n_target_samples": ({}, 7),
    "sequence_length": ({}, 4),
    "burn_in": ({}, 2),
    "refresh_memory": ({"learning_rate": 1e-2}, True),
    "value_clip": ({"learning_rate": 1e-2}, {"radius": 0.01}),
    "entropy": ({"ent_coef": 0.1}, {"floor": 0.5}),
    "kl_penalty": ({"learning_rate": 1e-2}, {"initial": 5.0}),
    "awr": ({}, {"coef": 1.0}),
    "vgs": ({}, {"warmup": 0, "strength": 1.0}),
    "adversary": ({}, {"kl_weight": 10.0, "epsilon": 0.3}),
    "risk": ({"risk": RISK}, RISK | {"limit": 0.5}),
}
RAISE: dict[str, Any] = {
    "critic": "scalar",
    "n_quantiles": 12,
    "levels": "uniform",
    "n_atoms": 12,
    "twin_critics": False,
    "use_sde": True,
    "action_distribution": "squashed",
    "n_jobs": 2,
    "policy": "MlpPolicy",
    "env": None,
    "device": "cpu",
    "seed": 5,
    "policy_kwargs": {},
}
# These have tests of their own.
ELSEWHERE = {"health", "on_alert", "max_consecutive_skips", "stats_window_size", "tensorboard_log", "verbose"}


def make(**kwargs: Any) -> DistributionalPPO:
    arguments: dict[str, Any] = {
        "n_steps": 23, "batch_size": 20, "n_epochs": 2, "sequence_length": 6, "n_quantiles": 9, "n_target_samples": 4,
        "seed": 3, "device": "cpu", "policy_kwargs": {"net_arch": [7], "lstm_hidden_size": 8},
    }  # fmt: skip
    env = earning(3) if "risk" in kwargs else staggered(3)
    return DistributionalPPO("MlpLstmPolicy", env, **(arguments | kwargs))


def trained(**kwargs: Any) -> DistributionalPPO:
    """Two rollouts, so that memories and units are not those of the start."""
    model = make(**kwargs)
    return model.learn(2 * model.n_steps * 3)


def go_on(model: DistributionalPPO) -> dict[str, torch.Tensor]:
    """One more round; what the weights then are."""
    model.learn(1, reset_num_timesteps=False)
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def test_the_tables_hold_every_argument():
    assert sorted([*ACT, *RAISE, *ELSEWHERE]) == sorted(ARGUMENTS)


def test_the_signature_and_the_settings_say_the_same():
    defaults = {n: p.default for n, p in inspect.signature(DistributionalPPO).parameters.items()}
    for name, field in Settings.model_fields.items():
        assert defaults[name] == (None if name in ("risk", "health") else field.default), name


@pytest.mark.parametrize("name", ACT)
def test_an_assigned_argument_does_what_a_model_with_that_argument_does(name):
    before, value = ACT[name]
    model = trained(**before)
    file = io.BytesIO()
    model.save(file)
    envs = [copy.deepcopy(model.get_env()) for _ in range(2)]
    rng = torch.get_rng_state()

    def loaded(env: Any, **custom: Any) -> DistributionalPPO:
        file.seek(0)
        return DistributionalPPO.load(file, env=env, device="cpu", force_reset=False, custom_objects=custom)

    unchanged = go_on(loaded(envs[0]))
    other = go_on(loaded(envs[1], **{name: value}))
    setattr(model, name, value)
    assert getattr(model, name) == getattr(Settings.read({name: value}, where="test"), name)
    torch.set_rng_state(rng)
    live = go_on(model)
    assert same(live, other)
    assert not same(live, unchanged), "the value changes nothing, so this test shows nothing"


@pytest.mark.parametrize("name", RAISE)
def test_an_argument_that_the_network_depends_on_is_refused(name):
    model = make()
    before = getattr(model, name)
    with pytest.raises((ArgumentError, ConfigError), match=f"{name}.*cannot"):
        setattr(model, name, RAISE[name])
    assert getattr(model, name) is before or getattr(model, name) == before


@pytest.mark.parametrize(
    ("built_with", "name", "value"),
    [
        ({}, "critic_learning_rate", 1e-3),
        ({"critic_learning_rate": 1e-3}, "critic_learning_rate", None),
        ({"risk": RISK}, "risk", [RISK, RISK]),
        ({"risk": RISK}, "risk", RISK | {"binds": "deployed"}),
        ({"risk": RISK}, "risk", None),
        ({"vgs": {}}, "vgs", {"mode": "norm"}),
    ],
)
def test_a_change_that_would_need_other_weights_or_moments_is_refused(built_with, name, value):
    model = make(**built_with)
    settings = model.settings
    with pytest.raises(ConfigError, match=f"{name}.*cannot change on a live model"):
        setattr(model, name, value)
    assert model.settings is settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", 1.5),
        ("gamma", float("nan")),
        ("gamma", True),
        ("learning_rate", -1.0),
        ("learning_rate", float("inf")),
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("target_kl", 0.0),
        ("awr", {"coeff": 1.0}),
        ("normalize_advantage", "globally"),
    ],
)
def test_a_wrong_value_is_refused_as_in_the_constructor_and_changes_nothing(name, value):
    model = make()
    settings = model.settings
    with pytest.raises(ConfigError, match=f"DistributionalPPO: .*{name}") as live:
        setattr(model, name, value)
    with pytest.raises(ConfigError) as built:
        make(**{name: value})
    assert str(live.value) == str(built.value)
    assert model.settings is settings


def test_the_number_of_skips_and_the_window_of_episodes_act_at_once():
    model = trained()
    model.max_consecutive_skips = 3
    assert model.engine.updater.pipeline.guard.max_consecutive == 3
    model.ep_info_buffer.extend({"r": float(r), "l": 1} for r in range(9))
    model.stats_window_size = 4
    assert [info["r"] for info in model.ep_info_buffer] == [5.0, 6.0, 7.0, 8.0]
    model.learn(1, reset_num_timesteps=False)
    assert model.ep_info_buffer.maxlen == 4


def test_where_to_log_and_how_loudly_act_from_the_next_learn_on(tmp_path, capsys):
    model = trained()
    capsys.readouterr()
    model.verbose, model.tensorboard_log = 1, str(tmp_path)
    model.learn(1, reset_num_timesteps=False)
    assert "approx_kl" in capsys.readouterr().out
    assert list(tmp_path.rglob("events.out.tfevents*"))


def test_many_change_at_once_and_what_comes_back_is_read_from_the_live_objects():
    model = trained(risk=RISK, adversary={}, vgs={"warmup": 0}, critic_learning_rate=1e-3)
    wanted = {
        "learning_rate": 2e-3,
        "critic_learning_rate": 4e-3,
        "clip_range": 0.3,
        "gamma": 0.9,
        "max_consecutive_skips": 4,
        "risk.0.learning_rate": 0.7,
        "adversary.epsilon": 0.11,
        "vgs.strength": 0.2,
        "batch_size": 30,
    }
    assert model.set_hyperparameters(**wanted) == wanted
    assert model.engine.risk_control.constraints[0].config.learning_rate == 0.7
    assert model.engine.state_adversary.config.epsilon == 0.11
    assert model.engine.variance_scaler.strength == 0.2
    model.learn(1, reset_num_timesteps=False)
    # At the end of training a constant rate has faded to `lr_scale_end`, 0.3 of it, under a constraint.
    rates = [group["lr"] for group in model.policy.optimizer.param_groups]
    assert rates == pytest.approx([0.3 * 2e-3, 0.3 * 4e-3])
    assert model.last_metrics["train/learning_rate"] == rates[0]


def test_two_fields_of_one_section_change_together():
    model = trained(adversary={}, risk=[{"alpha": 0.3}, {"alpha": 0.2}])
    values = {"adversary.epsilon": 0.2, "adversary.kl_weight": 0.3, "risk.1.proportional": 2.0, "risk.1.margin": 0.1}
    assert model.set_hyperparameters(**values) == values
    assert (model.risk[0].proportional, model.risk[1].proportional, model.risk[1].alpha) == (3.0, 2.0, 0.2)
    with pytest.raises(ArgumentError, match="there is no such field"):
        model.set_hyperparameters(**{"adversary.epsilon": 0.1, "adversary.kl_wait": 0.3})
    assert model.adversary.epsilon == 0.2


def test_an_adversary_with_other_settings_goes_on_from_its_count():
    model = trained(adversary={"warmup": 3})  # two updates of the three
    model.set_hyperparameters(**{"adversary.epsilon": 0.2})
    assert model.engine.state_adversary.updates == 2
    epsilons = []
    for _ in range(2):
        model.learn(1, reset_num_timesteps=False)
        epsilons.append(model.last_metrics["adversary/epsilon"])
    assert epsilons == [0.0, 0.2]


def test_a_schedule_reads_back_as_the_number_it_starts_from():
    model = trained()
    assert model.set_hyperparameters(learning_rate=LinearSchedule(5e-3, 1e-3, 1.0)) == {"learning_rate": 5e-3}
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)  # training is at its end


def test_sb3s_schedule_of_the_learning_rate_is_the_same_setting():
    model = trained(learning_rate=LinearSchedule(4e-3, 0.0, 1.0))
    assert model.lr_schedule(0.5) == pytest.approx(2e-3)
    model.learning_rate = 1e-3
    assert model.lr_schedule(0.5) == 1e-3
    model.lr_schedule = lambda remaining: 7e-3
    model.learn(1, reset_num_timesteps=False)
    assert model.last_metrics["train/learning_rate"] == 7e-3


def test_what_something_else_wrote_into_the_optimiser_is_noticed():
    model = trained()
    model.engine._set_learning_rates = lambda remaining: None  # as if a change did not arrive
    with pytest.raises(Exception, match=r"the optimiser's learning rate is 0.0003, and 0.002 was asked for"):
        model.set_hyperparameters(learning_rate=2e-3)


def test_all_or_nothing():
    model = make()
    settings = model.settings
    with pytest.raises(ConfigError, match="gamma"):
        model.set_hyperparameters(learning_rate=1e-2, gamma=7.0)
    assert model.settings is settings
    assert model.policy.optimizer.param_groups[0]["lr"] == 3e-4


@pytest.mark.parametrize("strategy", ["copy", "reset"])
def test_the_optimiser_keeps_what_it_has_gathered_or_starts_afresh(strategy):
    model = trained()
    moments = [state["exp_avg"].clone() for state in model.policy.optimizer.state.values()]
    model.set_hyperparameters(learning_rate=2e-3, optimizer_strategy=strategy)
    kept = [state["exp_avg"] for state in model.policy.optimizer.state.values()]
    assert len(kept) == (len(moments) if strategy == "copy" else 0)
    assert all(torch.equal(a, b) for a, b in zip(kept, moments, strict=False))
    assert model.policy.optimizer.param_groups[0]["lr"] == 2e-3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gama": 0.9}, "gama: there is no such setting; did you mean 'gamma'?"),
        ({"risk.1.limit": 0.0}, "risk.1.limit: '1' is no place in a list of 1"),
        ({"risk.².limit": 0.0}, "risk.².limit: '²' is no place in a list of 1"),
        ({"risk.0.limmit": 0.0}, "risk.0.limmit: there is no such field; did you mean 'limit'?"),
        ({"awr.coef": 0.1}, "awr.coef: it is None now and has no fields"),
        ({"optimizer_strategy": "keep"}, "optimizer_strategy must be 'copy' or 'reset', got 'keep'"),
    ],
)
def test_an_unknown_key_is_named(values, message):
    with pytest.raises(ArgumentError) as raised:
        make(risk=RISK).set_hyperparameters(**values)
    assert message in str(raised.value)


def test_settings_are_frozen_and_their_parts_change_by_a_new_model():
    model = make(risk=RISK)
    with pytest.raises(Exception, match="frozen"):
        model.risk[0].limit = 0.0
    model.risk = Risk(alpha=0.2, limit=0.25)
    assert model.engine.risk_control.constraints[0].config.limit == 0.25
