"""The state adversary: δ in its ball, the loss it makes, its schedule, and what it leaves alone."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import Tensor

from leeward import DistributionalPPO
from leeward.algorithm.losses import Rows, gather
from leeward.algorithm.state_adversary import Attack, StateAdversary
from leeward.config.learning import Adversary
from leeward.errors import ArgumentError, ConfigError, ShapeError, TrainingDiverged
from leeward.maths.nested import Memory
from leeward.rollout import streams
from leeward.rollout.sequences import cut, minibatches

from ..support.models import Look, build, collect, largest_gap, learn, parameters_of
from ..support.staggered_envs import Staggered

EPSILON = 0.1
MASK = np.array([True, False, True, True, False])
SCALE = (1.0, 1.0, 0.5, 2.0, 1.0)


def batch_of(model: DistributionalPPO) -> tuple[Rows, Memory]:
    """Every row of the last rollout, as one minibatch of sequences."""
    buffer, plan = model.rollout_buffer, model.engine.plan(None)
    assert buffer is not None
    sequences = cut(buffer.starts.numpy(), plan.sequence_length, plan.burn_in)
    batch = next(minibatches(sequences, buffer.shape[1], None, np.random.default_rng(0), torch.device("cpu")))
    times, envs = (torch.as_tensor(x)[batch.sequences] for x in (sequences.times, sequences.envs))
    return gather(buffer, buffer.advantages, batch), buffer.memory_before(times, envs)


def attack_of(model: DistributionalPPO, number: int = 0, **settings: Any) -> Attack:
    adversary = StateAdversary(model.policy, Adversary(epsilon=EPSILON, **settings))
    generator = streams.torch_generator(5, streams.ADVERSARY, number, torch.device("cpu"))
    assert model.rollout_buffer is not None
    attack = adversary.begin(model.rollout_buffer.rewards.numel(), 0.0, generator, number)
    assert attack is not None
    return attack


def perturbed(model: DistributionalPPO, attack: Attack) -> tuple[Tensor, Tensor, Rows, Memory]:
    """What the robust KL was computed on, and its value, real rows or not."""
    seen: list[Any] = []
    rows, memory = batch_of(model)
    inner = model.policy.action_parameters

    def spy(observation: Any, *rest: Any) -> Tensor:
        seen.append(observation.detach())
        return inner(observation, *rest)

    model.policy.action_parameters = spy  # type: ignore[method-assign]
    robust, _ = attack.robust_kl(rows, memory)
    model.policy.action_parameters = inner  # type: ignore[method-assign]
    return seen[-1], robust, rows, memory


@torch.no_grad()
def divergences(model: DistributionalPPO, rows: Rows, memory: Memory, moved: Any) -> Tensor:  # (L, S)
    policy = model.policy
    clean = policy.action_parameters(rows.observations, memory, rows.action_masks)
    return policy.action_head.kl(clean, policy.action_parameters(moved, memory, rows.action_masks))


@pytest.fixture(scope="module")
def trained() -> dict[str | None, DistributionalPPO]:
    return {memory: learn(build(memory=memory, n_steps=40), 6) for memory in (None, "lstm")}


@pytest.mark.parametrize("memory", [None, "lstm"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("method", ["fgsm", "pgd", "sgld"])
def test_delta_stays_in_its_ball_spares_masked_features_and_raises_the_divergence(
    method: str, norm: str, memory: str | None, trained: dict[str | None, DistributionalPPO]
) -> None:
    model = trained[memory]
    attack = attack_of(model, method=method, norm=norm, scale=SCALE, mask=tuple(MASK), steps=4)
    moved, robust, rows, before = perturbed(model, attack)
    assert isinstance(rows.observations, Tensor)
    assert torch.equal(moved[..., ~MASK], rows.observations[..., ~MASK])
    delta = ((moved.double() - rows.observations.double()) / torch.tensor(SCALE))[rows.mask]  # (n, F)
    size = delta.abs().amax(-1) if norm == "linf" else delta.norm(dim=-1)
    assert float(size.max()) <= EPSILON + 1e-6
    assert float(size.mean()) > 0.95 * EPSILON  # it uses what it is given
    found = divergences(model, rows, before, moved)[rows.mask]
    assert float(found.min()) >= -1e-7  # the clean objective is 0 in every row
    assert float(robust.detach()) == pytest.approx(float(found.sum()), rel=1e-4) and float(found.sum()) > 0.0
    start = attack.starts.index_select(0, rows.index).unflatten(0, rows.mask.shape)
    begun = divergences(model, rows, before, attack.features.add(rows.observations, start))[rows.mask]
    better = float((found > begun).float().mean())
    assert better >= (0.95 if memory is None else 0.8)  # with memory a row also pays for what its successors gain
    assert float(found.sum()) > 1.5 * float(begun.sum())


@pytest.mark.parametrize("memory", [None, "lstm"])
def test_the_critics_are_attacked_for_their_own_sake(
    memory: str | None, trained: dict[str | None, DistributionalPPO]
) -> None:
    model = trained[memory]
    rows, before = batch_of(model)
    shifts = []
    for method, steps in (("fgsm", 1), ("pgd", 8)):
        attack = attack_of(model, method=method, steps=steps, value_weight=1.0)
        shifts.append(float(attack.value_shift(rows, before).detach()))
        policy = model.policy
        random = attack.features.add(rows.observations, attack.starts[rows.index].unflatten(0, rows.mask.shape))
        with torch.no_grad():
            moved, clean = (policy.values(policy.latents(seen, before).critic) for seen in (random, rows.observations))
        gap = moved - clean
        by_chance = float(((gap.square() * policy.critic.weights).sum(-1).mean(-1))[rows.mask].sum())
        assert shifts[-1] > 1.5 * by_chance > 0.0
    assert shifts[1] > 0.99 * shifts[0]


@pytest.mark.parametrize("memory", [None, "lstm"])
def test_the_gradient_is_that_of_the_perturbed_side_on_the_same_rows(
    memory: str | None, trained: dict[str | None, DistributionalPPO]
) -> None:
    model = trained[memory]
    moved, robust, rows, before = perturbed(model, attack_of(model))
    parameters = list(model.policy.parameters())
    found = torch.autograd.grad(robust, parameters, allow_unused=True)
    with torch.no_grad():
        constant = model.policy.action_parameters(rows.observations, before)
    again = model.policy.action_head.kl(constant, model.policy.action_parameters(moved, before))[rows.mask].sum()
    expected = torch.autograd.grad(again, parameters, allow_unused=True)
    reached = 0
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
            reached += bool(mine.any())
    assert reached >= 4


def test_the_search_leaves_no_gradient_on_any_parameter(trained: dict[str | None, DistributionalPPO]) -> None:
    model = trained["lstm"]
    model.policy.zero_grad(set_to_none=True)
    rows, before = batch_of(model)
    attack_of(model, value_weight=1.0).robust_kl(rows, before)
    assert all(p.grad is None for p in model.policy.parameters())


def test_whole_sequences_are_perturbed_their_context_too_and_padding_counts_for_nothing() -> None:
    model = build(burn_in=2, ends=0.15)
    collect(model)
    attack = attack_of(model)
    moved, robust, rows, before = perturbed(model, attack)
    assert isinstance(rows.observations, Tensor)
    sequences = cut(model.rollout_buffer.starts.numpy(), 6, 2)  # type: ignore[union-attr]
    assert sequences.context.any() and len(set(sequences.lengths)) > 2 and not bool(rows.mask.all())
    real_or_context = rows.mask.flip(0).cummax(0).values.flip(0)  # up to each sequence's last real step
    assert bool((moved != rows.observations).all(-1)[real_or_context].all())
    each = divergences(model, rows, before, moved)
    assert float(robust.detach()) == pytest.approx(float(each[rows.mask].sum()), rel=1e-4)
    # Each sequence by itself, without padding, from its own memory.
    for s in range(rows.mask.shape[1]):
        length = int(rows.mask[:, s].nonzero().max()) + 1
        own = tuple(part[:, [s]] for part in before)
        clean = model.policy.action_parameters(rows.observations[:length, [s]], own)
        alone = model.policy.action_head.kl(clean, model.policy.action_parameters(moved[:length, [s]], own))
        torch.testing.assert_close(alone[:, 0].detach(), each[:length, s], rtol=1e-3, atol=1e-7)


def test_micro_batches_add_up_to_one_batch() -> None:
    sgd: dict[str, Any] = {"batch_size": None, "n_epochs": 1, "max_grad_norm": None, "learning_rate": 0.5}
    sgd |= {"policy_kwargs": {"optimizer_class": torch.optim.SGD}}
    on = {"adversary": {"kl_weight": 3.0, "epsilon": 0.3, "value_weight": 1.0}}
    whole, parts = learn(build(**sgd, **on), 1), learn(build(**sgd, **on, micro_batch_size=10), 1)
    assert largest_gap(parameters_of(whole.policy), parameters_of(learn(build(**sgd), 1).policy)) > 1e-4
    assert largest_gap(parameters_of(whole.policy), parameters_of(parts.policy)) <= 2e-6


def test_dropout_is_no_perturbation() -> None:
    kwargs = {"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.5}}
    model = learn(build(policy_kwargs=kwargs, adversary={"epsilon": 1e-3}), 2)
    assert model.last_metrics["adversary/robust_kl"] < 1e-5


def test_training_against_it_makes_the_policy_flatter() -> None:
    kls = {}
    for weight in (1e-6, 3.0):
        adversary = {"epsilon": 0.3, "kl_weight": weight, "value_weight": weight}
        model = learn(build(memory=None, adversary=adversary, learning_rate=3e-3), 12)
        kls[weight] = [model.last_metrics[f"adversary/{name}"] for name in ("robust_kl", "value_shift")]
    assert kls[3.0][0] < 0.7 * kls[1e-6][0]
    assert kls[3.0][1] < 0.9 * kls[1e-6][1]


# --- radius, warm-up, randomness -------------------------------------------------------------------------------------


def radii(config: dict[str, Any], progresses: list[float]) -> list[float | None]:
    adversary = StateAdversary(build(memory=None).policy, Adversary(**config))
    attacks = [adversary.begin(4, p, torch.Generator().manual_seed(0), i) for i, p in enumerate(progresses)]
    return [None if attack is None else attack.epsilon for attack in attacks]


def test_a_constant_radius_is_there_from_the_first_update_on() -> None:
    assert radii({"epsilon": 0.2}, [0.25, 0.5, 1.0]) == [0.2, 0.2, 0.2]


def test_a_growing_radius_starts_from_its_constant_when_the_warm_up_ends() -> None:
    # Two updates of warm-up; growth from progress 0.6 to 1: half way at 0.8.
    found = radii({"epsilon": 0.2, "epsilon_end": 0.6, "warmup": 2}, [0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[:2] == [None, None]
    assert found[2:] == pytest.approx([0.2, 0.4, 0.6])


def test_a_cosine_growth_is_slow_at_both_ends() -> None:
    found = radii({"epsilon": 0.2, "epsilon_end": 0.6, "epsilon_schedule": "cosine"}, [0.0, 0.25, 0.5, 1.0])
    # 0.6 + ½ (0.2 − 0.6)(1 + cos π/4) = 0.6 − 0.2 · 1.70711
    assert found == pytest.approx([0.2, 0.258579, 0.4, 0.6], abs=1e-6)


def test_the_warm_up_counts_by_itself_and_is_a_plain_update() -> None:
    seen: list[float] = []
    models = [build(adversary={"warmup": 2}), build()]
    for model in models:
        learn(model, 2)
    assert models[0].last_metrics["adversary/epsilon"] == 0.0
    assert "adversary/robust_kl" not in models[0].last_metrics
    assert largest_gap(parameters_of(models[0].policy), parameters_of(models[1].policy)) == 0.0
    see = Look(lambda model: seen.append(model.last_metrics["adversary/epsilon"]))
    models[0].learn(3 * 69, see, reset_num_timesteps=False)
    assert seen == [0.0, 0.05, 0.05]
    assert models[0].last_metrics["adversary/robust_kl"] > 0.0


def test_the_draws_depend_on_seed_and_update_alone() -> None:
    model = build(memory=None)
    collect(model)
    first, same, later = (attack_of(model, number).starts for number in (0, 0, 1))
    assert torch.equal(first, same) and not torch.equal(first, later)
    torch.manual_seed(1)
    one = learn(build(adversary={"method": "sgld"}), 2)
    torch.manual_seed(2)
    two = learn(build(adversary={"method": "sgld"}), 2)
    assert largest_gap(parameters_of(one.policy), parameters_of(two.policy)) == 0.0


def test_each_update_of_a_run_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    begin = StateAdversary.begin

    def spy(self: StateAdversary, *arguments: Any) -> Any:
        attack = begin(self, *arguments)
        assert attack is not None
        drawn.append(attack.starts)
        return attack

    monkeypatch.setattr(StateAdversary, "begin", spy)
    for seed in (3, 3, 4):
        learn(build(memory=None, adversary={}, seed=seed, n_epochs=1), 2)
    first, second, again, _, other, _ = drawn
    assert torch.equal(first, again)
    assert not torch.equal(first, second) and not torch.equal(first, other)


def test_its_count_and_growth_survive_a_round_trip() -> None:
    one, two = (StateAdversary(build(memory=None).policy, Adversary(warmup=1, epsilon_end=1.0)) for _ in range(2))
    for progress in (0.1, 0.4):
        one.begin(4, progress, torch.Generator().manual_seed(0), 0)
    two.load_state_dict(one.state_dict())
    assert (two.updates, two.grows_from) == (2, 0.4)
    assert two.epsilon(0.7) == one.epsilon(0.7) != 0.05


# --- which features, in which unit -----------------------------------------------------------------------------------


class Marked(Staggered):
    """An env that marks what an adversary may perturb."""

    attackable: Any = MASK


def marked(attackable: Any = MASK) -> DummyVecEnv:
    env = DummyVecEnv([lambda: Marked(0), lambda: Marked(1)])
    for one in env.envs:
        one.attackable = attackable
    return env


def test_the_env_marks_what_may_be_perturbed_and_a_mask_of_the_users_goes_before() -> None:
    model = build(env=VecNormalize(marked()), adversary={"epsilon": EPSILON})
    assert model.engine.state_adversary is not None
    assert model.engine.state_adversary.features.mask.tolist() == MASK.tolist()  # type: ignore[union-attr]
    own = [True, True, False, False, False]
    model = build(env=marked(), adversary={"mask": own})
    assert model.engine.state_adversary.features.mask.tolist() == own  # type: ignore[union-attr]
    assert build(adversary={}).engine.state_adversary.features.mask is None  # type: ignore[union-attr]
    model.set_env(marked())
    assert model.engine.state_adversary.features.mask.tolist() == own  # type: ignore[union-attr]


def test_the_ball_is_in_the_unit_of_the_policys_own_normaliser() -> None:
    model = learn(build(memory=None, policy_kwargs={"normalize_observations": True}), 3)
    normaliser = model.policy.observation_normaliser
    assert normaliser is not None
    unit = normaliser.unit("observation")
    assert unit is not None and float((unit - 1.0).abs().min()) > 0.1
    moved, _, rows, _ = perturbed(model, attack_of(model))
    assert isinstance(rows.observations, Tensor)
    gap = (normaliser(moved.flatten(0, 1)) - normaliser(rows.observations.flatten(0, 1))).abs()  # type: ignore[union-attr]
    assert float(gap.max()) == pytest.approx(EPSILON, abs=1e-5)


def test_an_image_is_attacked_in_units_of_its_whole_range() -> None:
    model = learn(build(observation="image", memory=None, n_steps=11), 1)
    moved, _, rows, _ = perturbed(model, attack_of(model))
    gap = (moved - rows.observations).abs()  # type: ignore[operator]
    assert float(gap.max()) == pytest.approx(EPSILON * 255.0, rel=1e-5)


def test_of_a_dict_the_float_boxes_are_attacked_or_the_keys_that_are_named() -> None:
    model = learn(build(observation="dict"), 1)
    for keys in (None, ("place",)):
        attack = attack_of(model, keys=keys, scale={"place": (1.0, 2.0, 1.0, 1.0)})
        assert attack.features.size == 4
        rows, before = batch_of(model)
        assert isinstance(rows.observations, dict)
        moved = attack.features.add(rows.observations, torch.ones(*rows.mask.shape, 4))
        assert isinstance(moved, dict) and torch.equal(moved["phase"], rows.observations["phase"])
        gap = (moved["place"] - rows.observations["place"]).mean((0, 1))
        torch.testing.assert_close(gap, torch.tensor([1.0, 2.0, 1.0, 1.0]))
        assert float(attack.robust_kl(rows, before)[0].detach()) > 0.0


def test_a_feature_that_is_left_alone_keeps_every_bit_of_a_double() -> None:
    space = spaces.Box(-9.0, 9.0, (5,), np.float64)

    class Double(Staggered):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            self.observation_space = space

        def _look(self) -> Any:
            return np.asarray(super()._look(), dtype=np.float64) / 3.0

    model = learn(build(env=DummyVecEnv([lambda: Double(0)]), memory=None, batch_size=10), 1)
    attack = attack_of(model, mask=tuple(MASK))
    moved, _, rows, _ = perturbed(model, attack)
    assert moved.dtype == torch.float64
    assert torch.equal(moved[..., ~MASK], rows.observations[..., ~MASK])  # type: ignore[index]


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilonn": 1.0}, r"unknown key 'adversary\.epsilonn'; did you mean .*epsilon"),
        ({"epsilon": 0.0}, r"adversary\.epsilon: .*greater than 0, got 0.0"),
        ({"method": "fsgm"}, r"adversary\.method: .*'fgsm'"),
        ({"norm": "l1"}, r"adversary\.norm: .*'linf' or 'l2'"),
        (
            {"epsilon": 0.2, "epsilon_end": 0.1},
            "adversary: epsilon_end 0.1 lies below epsilon 0.2; the radius only grows",
        ),
        (
            {"epsilon_end": 0.1, "epsilon_schedule": "constant"},
            "adversary: a constant epsilon_schedule has no epsilon_end",
        ),
        ({"warmup": -1}, r"adversary\.warmup"),
        ({"value_weight": 0.0}, r"adversary\.value_weight"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^DistributionalPPO: {message}"):
        build(adversary=settings)


@pytest.mark.parametrize(
    ("world", "settings", "error", "message"),
    [
        ({}, {"keys": ("place",)}, ArgumentError, "keys names parts of a Dict observation"),
        ({"observation": "dict"}, {"keys": ("plaice",)}, ArgumentError, "no part 'plaice'; did you mean .*place"),
        ({"observation": "dict"}, {"keys": ("phase",)}, ArgumentError, r"'phase' is Discrete\(6\)"),
        ({"observation": "dict"}, {"scale": {}}, ArgumentError, "adversary.scale|scale lacks place"),
        ({}, {"mask": (True, False)}, ShapeError, r"adversary.mask needs one entry per feature, \(5,\), got \(2,\)"),
        ({}, {"scale": (1.0, 2.0)}, ShapeError, r"scale needs one entry per feature, \(5,\), got \(2,\)"),
        ({}, {"mask": (False,) * 5}, ArgumentError, "allows no feature, so there is nothing to attack"),
    ],
)
def test_features_that_are_not_there_are_named(
    world: dict[str, Any], settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(**world, adversary=settings)


@pytest.mark.parametrize(
    ("attackable", "error", "message"),
    [
        (np.ones(4, dtype=bool), ShapeError, r"attribute `attackable` needs one entry per feature, \(5,\), got \(4,\)"),
        (np.ones(5), ArgumentError, "attribute `attackable` must hold True and False, got float64"),
    ],
)
def test_an_env_that_marks_the_wrong_features_is_told(attackable: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(env=marked(attackable), adversary={})


def test_an_observation_without_slopes_cannot_be_attacked() -> None:
    class Counted(gymnasium.Env[Any, Any]):
        observation_space: spaces.Space[Any] = spaces.Discrete(4)
        action_space = spaces.Discrete(2)

    with pytest.raises(ArgumentError, match=r"adds small numbers to observations, and Discrete\(4\) has none"):
        DistributionalPPO("MlpPolicy", DummyVecEnv([Counted]), adversary={}, device="cpu")
    Counted.observation_space = spaces.Dict({"phase": spaces.Discrete(3)})
    with pytest.raises(ArgumentError, match=r"no part of .* is a Box of floats"):
        DistributionalPPO("MultiInputPolicy", DummyVecEnv([Counted]), adversary={}, device="cpu")


def test_a_robust_kl_without_gradient_stops_training() -> None:
    model = build(adversary={}, n_epochs=1)
    torch.nn.init.zeros_(model.policy.action_head.net.weight)  # an actor that looks at nothing
    with pytest.raises(
        TrainingDiverged, match=r"update 0: the adversary is on, but its robust KL \(0\) has no gradient"
    ):
        learn(model, 1)


def test_a_loaded_model_without_env_takes_the_mask_of_the_env_it_is_given(tmp_path: Any) -> None:
    model = learn(build(env=marked(), adversary={"epsilon": EPSILON, "scale": SCALE}, batch_size=10), 1)
    model.save(tmp_path / "m")
    loaded = DistributionalPPO.load(tmp_path / "m")
    assert loaded.adversary == model.adversary
    assert loaded.engine.state_adversary is not None and loaded.engine.state_adversary.features.mask is None
    loaded.set_env(marked())
    assert loaded.engine.state_adversary.features.mask.tolist() == MASK.tolist()  # type: ignore[union-attr]
    assert loaded.engine.state_adversary.updates == 1


def test_nothing_of_it_is_there_when_it_is_off() -> None:
    model = learn(build(), 1)
    assert model.engine.state_adversary is None and "adversary" not in model.owners()
    assert not [name for name in model.last_metrics if name.startswith("adversary/")]
