"""The constructor and the policies' arguments are RecurrentPPO's; what differs stands in docs/from-sb3.md."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import sb3_contrib
from sb3_contrib.ppo_recurrent import policies as theirs
from torch import nn, optim

from leeward import DistributionalPPO
from leeward.config.reference import argument_table, policy_argument_table
from leeward.config.settings import Settings
from leeward.networks import policy as ours

from ..support.small_models import build
from ..support.space_envs import World, vector

DOC = Path(__file__).parents[2] / "docs" / "from-sb3.md"
POLICIES = [
    (theirs.MlpLstmPolicy, ours.MlpLstmPolicy),
    (theirs.CnnLstmPolicy, ours.CnnLstmPolicy),
    (theirs.MultiInputLstmPolicy, ours.MultiInputLstmPolicy),
]


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return {n: p for n, p in inspect.signature(function).parameters.items() if n != "self"}


def page_table(heading: str) -> str:
    """The table under a heading of the page, as it stands there."""
    section = DOC.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return "".join(f"{line}\n" for line in section.splitlines() if line.startswith("|"))


def table(heading: str) -> list[list[str]]:
    """Its rows, cells without backticks."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page_table(heading).splitlines()]
    return [[cell.strip().strip("`") for cell in row] for row in rows[2:]]


def test_every_argument_of_recurrentppo_is_there_in_the_same_place_with_the_same_default():
    expected, found = parameters(sb3_contrib.RecurrentPPO), parameters(DistributionalPPO)
    assert list(found)[: len(expected)] == list(expected)
    assert {n: found[n].default for n in expected} == {n: p.default for n, p in expected.items()}
    assert all(p.kind is p.KEYWORD_ONLY for n, p in found.items() if n not in expected), "ours are keyword-only"


def test_the_settings_are_arguments_of_the_constructor_with_the_same_defaults():
    found = parameters(DistributionalPPO)
    own = {"policy", "env", "tensorboard_log", "policy_kwargs", "verbose", "seed", "device", "_init_setup_model"}
    own |= {"on_alert"}  # a function
    assert found.keys() - own == Settings.model_fields.keys()
    assert Settings(**{name: found[name].default for name in Settings.model_fields}) == Settings()


@pytest.mark.parametrize(("expected", "found"), POLICIES, ids=lambda policy: policy.__module__)
def test_every_policy_argument_of_sb3_contrib_is_there_with_the_same_default(expected, found):
    reference, own = parameters(expected), parameters(found)
    assert list(own)[: len(reference)] == list(reference)
    for name, parameter in reference.items():
        default = found.default_extractor if name == "features_extractor_class" else own[name].default
        assert default == parameter.default, name


def test_the_policy_names_of_recurrentppo_and_those_without_memory_are_known():
    assert set(DistributionalPPO.policy_aliases) == set(sb3_contrib.RecurrentPPO.policy_aliases) | {
        "MlpPolicy",
        "CnnPolicy",
        "MultiInputPolicy",
    }


@pytest.mark.parametrize("method", ["learn", "predict", "save", "load", "set_env", "set_parameters", "get_parameters"])
def test_methods_take_the_arguments_of_sb3_in_the_same_order_with_the_same_defaults(method):
    expected = parameters(getattr(sb3_contrib.RecurrentPPO, method))
    found = parameters(getattr(DistributionalPPO, method))
    assert list(found)[: len(expected)] == list(expected)
    for name, parameter in expected.items():
        if name != "tb_log_name":
            assert found[name].default == parameter.default, name


def test_the_page_lists_every_argument_that_is_ours_with_its_default():
    expected = parameters(sb3_contrib.RecurrentPPO)
    known = {*expected, "on_alert"}  # a function, which the text below the table explains
    own = {n: repr(p.default).replace("'", '"') for n, p in parameters(DistributionalPPO).items() if n not in known}
    assert {row[0]: row[1] for row in table("New arguments")} == own
    assert page_table("New arguments") == argument_table(set(expected))


def test_the_page_lists_every_policy_argument_that_is_ours_with_its_default():
    expected = parameters(theirs.MlpLstmPolicy)
    through_the_constructor = {*parameters(DistributionalPPO), "settings"}  # of the algorithm, which hands them over
    own = {
        name: repr(parameter.default).replace("'", '"')
        for name, parameter in parameters(ours.MlpLstmPolicy).items()
        if name not in expected and name not in through_the_constructor
    }
    assert {row[0]: row[1] for row in table("New policy arguments")} == own
    assert page_table("New policy arguments") == policy_argument_table(set(expected))


def test_the_page_lists_every_argument_whose_meaning_or_default_changed():
    expected, found = parameters(sb3_contrib.RecurrentPPO), parameters(DistributionalPPO)
    changed = {n for n in expected if found[n].default != expected[n].default}
    assert changed == set(), "a changed default must be named in the issue first"
    # Meanings cannot be read off a signature; these are the ones the design names.
    meanings = {"normalize_advantage", "clip_range_vf", "vf_coef", "target_kl", "batch_size", "max_grad_norm"}
    assert {row[0] for row in table("Arguments with another meaning")} == meanings


def test_a_plain_constructor_call_builds_the_network_that_recurrentppo_builds():
    env = vector()
    reference = sb3_contrib.RecurrentPPO("MlpLstmPolicy", env, device="cpu").policy
    model = DistributionalPPO("MlpLstmPolicy", env, device="cpu", twin_critics=False, critic="scalar")

    def count(*modules: nn.Module) -> int:
        return sum(p.numel() for module in modules for p in module.parameters())

    policy = model.policy
    assert count(reference) == count(policy)
    assert count(reference.lstm_actor, reference.lstm_critic) == count(policy.actor_memory, policy.critic_memory)
    assert reference.optimizer.defaults["eps"] == policy.optimizer.defaults["eps"]
    assert type(policy.optimizer) is optim.Adam and policy.optimizer.defaults["fused"]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"shared_lstm": True, "enable_critic_lstm": False},
        {"enable_critic_lstm": False},
        {"share_features_extractor": False},
        {"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.1}},
        {"net_arch": {"pi": [4], "vf": [5, 6]}, "activation_fn": nn.ReLU, "ortho_init": False},
        {"net_arch": []},
        {"optimizer_class": optim.SGD, "optimizer_kwargs": {"momentum": 0.5}},
        {"optimizer_kwargs": {"eps": 1e-3, "betas": (0.5, 0.9)}},
        {"cell": "gru"},
        {"normalize_observations": True},
    ],
    ids=str,
)
def test_policy_arguments_train(kwargs):
    model = build("MlpLstmPolicy", vector(), policy_kwargs=kwargs)
    before = [p.clone() for p in model.policy.parameters()]
    model.learn(64)
    assert any(not a.equal(b) for a, b in zip(before, model.policy.parameters(), strict=True))


def test_the_old_form_of_net_arch_is_taken_with_a_warning_as_in_sb3():
    with pytest.warns(UserWarning, match="old form"):
        model = build("MlpPolicy", vector(), policy_kwargs={"net_arch": [{"pi": [4], "vf": [5]}]})
    assert model.policy.actor_mlp[0].out_features == 4
    assert model.policy.critic_mlps[0][0].out_features == 5


def test_rl_zoo_builds_trains_saves_and_loads_it_from_a_dict_of_keywords(tmp_path):
    yaml = pytest.importorskip("yaml")
    text = """
    policy: MlpLstmPolicy
    n_steps: 8
    batch_size: 16
    n_epochs: 1
    learning_rate: 0.001
    ent_coef: 0.0
    clip_range: 0.2
    gae_lambda: 0.9
    policy_kwargs: {lstm_hidden_size: 8, net_arch: [8], enable_critic_lstm: true}
    critic: categorical
    entropy: {end: 0.0, floor: 0.0}
    """
    algos: dict[str, Any] = {"dppo": DistributionalPPO}
    env = vector(World, 4)
    model = algos["dppo"](env=env, tensorboard_log=None, seed=0, verbose=0, device="auto", **yaml.safe_load(text))
    model.learn(64, callback=[], log_interval=-1, progress_bar=False)
    model.save(str(tmp_path / "World-v0"))
    loaded = algos["dppo"].load(str(tmp_path / "World-v0.zip"), env=env, custom_objects={}, device="auto", seed=0)
    assert loaded.num_timesteps == 64
