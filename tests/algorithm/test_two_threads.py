"""Actor and critics side by side on two threads: the same bits, and nothing left running when one fails."""

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor, nn

from leeward import DistributionalPPO
from leeward.algorithm import ppo
from leeward.algorithm.two_threads import TwoThreads, two_threads

from ..support.models import Look, build, learn, parameters_of


@pytest.fixture
def two_available() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def trained(threads: int, **settings: Any) -> dict[str, Tensor]:
    """The weights after three updates."""
    model = build(n_envs=5, learning_rate=3e-3, **settings)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        learn(model, 3)
        assert torch.get_num_threads() == threads  # it gave back what it found
    finally:
        torch.set_num_threads(before)
    return parameters_of(model.policy)


SHARED = {"enable_critic_lstm": False, "shared_lstm": True}

SETTINGS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru, one critic, micro-batches": {"memory": "gru", "twin_critics": False, "micro_batch_size": 7},
    "normaliser, value clipping": {"policy_kwargs": {"normalize_observations": True}, "clip_range_vf": 0.1},
    "risk": {"risk": {"alpha": 0.3, "limit": 0.0}},
    "no memory": {"memory": None},
    "shared memory": {"policy_kwargs": SHARED, "micro_batch_size": 7},
    "shared memory, risk": {"policy_kwargs": SHARED, "risk": {"alpha": 0.3, "limit": 0.0}},
    "shared memory, convolutions": {"observation": "image", "policy_kwargs": SHARED},
    "own extractors": {"observation": "image", "policy_kwargs": {"share_features_extractor": False}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_two_threads_train_the_same_bits_as_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    plain = TwoThreads.run_both

    def run_both(self: TwoThreads, first: Any, second: Any) -> Any:
        seen.append(self.other is not None)
        return plain(self, first, second)

    monkeypatch.setattr(TwoThreads, "run_both", run_both)
    monkeypatch.setattr(ppo, "_WORK", 0.0)
    one = trained(1, **SETTINGS[name])
    assert seen and not any(seen)
    seen.clear()
    two = trained(2, **SETTINGS[name])
    assert seen and all(seen)
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("memory, factor, expected", [("lstm", 1, True), (None, 1, False), (None, 10_000, True)])
def test_a_second_thread_is_for_minibatches_that_are_work(
    memory: str | None, factor: int, expected: bool, two_available: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows of small layers are over before another thread has begun."""
    model = build(n_envs=5, memory=memory)
    monkeypatch.setattr(ppo, "_WORK", ppo._WORK / factor)
    threads = Look(lambda learning: (learning._threads.other is not None, torch.get_num_threads()))
    learn(model, 1, threads)
    assert set(threads.seen) == {(expected, 1)}


APART: dict[str, tuple[dict[str, Any], bool]] = {
    "lstm": ({}, True),
    "gru": ({"memory": "gru"}, True),
    "dict": ({"observation": "dict"}, True),
    "a critic without memory": ({"policy_kwargs": {"enable_critic_lstm": False}}, True),
    "shared memory": ({"policy_kwargs": SHARED}, True),
    "shared memory, convolutions": ({"observation": "image", "policy_kwargs": SHARED}, True),
    "shared convolutions": ({"observation": "image"}, False),
    "own convolutions": ({"observation": "image", "policy_kwargs": {"share_features_extractor": False}}, True),
    "dropout": ({"policy_kwargs": {"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.1}}}, False),
    "random activations": ({"policy_kwargs": {"activation_fn": nn.RReLU}}, False),
    "no memory": ({"memory": None}, True),
}


@pytest.mark.parametrize("name", APART)
def test_two_threads_are_for_halves_that_train_nothing_in_common(name: str) -> None:
    settings, expected = APART[name]
    model = build(**settings)
    assert model.engine.updater.side_by_side == expected
    actor, critics = gradients_of_each_half(model)
    assert actor and critics
    if model.policy.halves_are_apart:
        assert not actor & critics


def test_a_model_is_copied_while_it_learns(two_available: None) -> None:
    """The copy goes on alone, and so does the original."""
    model = build(n_envs=5)
    copies = Look(lambda learning: copy.deepcopy(learning.policy.state_dict() | {"threads": learning._threads}))
    learn(model, 1, copies)
    assert copies.seen[0]["threads"].run_both(lambda: 1, lambda: 2) == (1, 2)
    learn(model, 1)
    assert model._threads.other is None


def gradients_of_each_half(model: DistributionalPPO) -> tuple[set[str], set[str]]:
    """Names of the parameters that the actor's outputs, and those that the critics', depend on."""
    learn(model, 1)
    policy, buffer = model.policy, model.rollout_buffer
    assert buffer is not None
    before = tuple(part[0] for part in buffer.memories)
    observations = buffer.observations
    first = {k: v[:1] for k, v in observations.items()} if isinstance(observations, dict) else observations[:1]
    if policy.halves_are_apart:
        hidden = policy.shared_hidden(first, before)
        actor = policy.evaluate_actor(first, buffer.actions[:1], before, None, hidden)
        critic = policy.evaluate_critic(first, before, hidden)
    else:
        actor, critic = policy.evaluate(first, buffer.actions[:1], before)

    def reached(output: Tensor) -> set[str]:
        named = dict(policy.named_parameters())
        grads = torch.autograd.grad(output.sum(), list(named.values()), allow_unused=True, retain_graph=True)
        return {name for name, grad in zip(named, grads, strict=True) if grad is not None}

    return reached(actor.log_prob), reached(critic.values)


def test_both_run_at_the_same_time(two_available: None) -> None:
    meeting = threading.Barrier(2, timeout=10.0)  # neither passes without the other
    with two_threads(wanted=True) as threads:
        assert torch.get_num_threads() == 1
        inside = threads.run_both(lambda: (meeting.wait(), torch.get_num_threads()), lambda: meeting.wait())
        assert inside[0][1] == 1
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("wanted", "available"), [(False, 2), (True, 1)])
def test_without_a_second_thread_one_follows_the_other(two_available: None, wanted: bool, available: int) -> None:
    torch.set_num_threads(available)
    order: list[int] = []
    with two_threads(wanted=wanted) as threads:
        assert threads.run_both(lambda: order.append(1), lambda: order.append(2)) == (None, None)
        assert torch.get_num_threads() == available
    assert order == [1, 2]


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_thread_waits_for_the_other(two_available: None, failing: int) -> None:
    ended = threading.Event()
    meeting = threading.Barrier(2, timeout=20.0)

    def fails() -> None:
        meeting.wait()
        raise ZeroDivisionError("in a thread")

    def lasts() -> None:
        meeting.wait()
        threading.Event().wait(0.1)
        ended.set()

    with two_threads(wanted=True) as threads:
        with pytest.raises(ZeroDivisionError, match="in a thread"):
            threads.run_both(*((fails, lasts) if failing == 0 else (lasts, fails)))
        assert ended.is_set()
        assert threads.run_both(lambda: 1, lambda: 2) == (1, 2)  # and go on
    assert torch.get_num_threads() == 2


class Backed(FlattenExtractor):
    """Reads through a module that somebody else may hold too."""

    def __init__(self, space: Any, backbone: nn.Module) -> None:
        super().__init__(space)
        self.backbone = backbone

    def forward(self, observations: Tensor) -> Tensor:
        read: Tensor = self.backbone(super().forward(observations))
        return read


def test_two_extractors_may_hold_one_module() -> None:
    (size,) = build().observation_space.shape
    kwargs = {"features_extractor_class": Backed, "share_features_extractor": False}
    for backbone, apart in ((nn.Linear(size, size), False), (nn.Tanh(), True)):
        settings = kwargs | {"features_extractor_kwargs": {"backbone": backbone}}
        assert build(policy_kwargs=settings).policy.halves_are_apart == apart


def test_an_adversary_keeps_all_threads_to_itself(two_available: None) -> None:
    model = build(n_envs=5, adversary={"epsilon": 0.1})
    seen: list[int] = []
    learn(model, 2, Look(lambda _: seen.append(torch.get_num_threads())))
    assert seen == [2, 2]
