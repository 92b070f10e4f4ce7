"""`n_jobs` with real processes: same bits for the same seed, exact resume, and nothing left behind when one dies."""

import multiprocessing
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import gymnasium
import pytest
import torch
from stable_baselines3.common import callbacks
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from leeward import DistributionalPPO
from leeward.algorithm.checkpoint import read_checkpoint
from leeward.algorithm.parallel import worker_pool
from leeward.env.sb3 import RunningReturnVecEnv, TradingVecEnv
from leeward.errors import ArgumentError, ConfigError, WorkerFault

from ..support.replicas import STEPS, settings
from ..support.small_models import states
from ..support.walk_envs import ENVS, FailingWalk, SeenWalk, Walk, functions

ROLLOUT = ENVS * STEPS


def trading() -> RunningReturnVecEnv:
    return RunningReturnVecEnv(TradingVecEnv("sample:synthetic", ENVS, seed=4, episode_bars=9))


FULL: dict[str, Any] = settings(
    policy_kwargs={"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.3}, "normalize_observations": True},
    risk=[
        {"alpha": 0.4, "limit": 0.0, "binds": "deployed"},
        {"measure": "episode_return", "alpha": 0.5, "limit": -0.01},
    ],
    adversary={"method": "sgld"},
    vgs={"warmup": 4, "strength": 1.0, "beta": 0.9},
    learning_rate=lambda progress: 1e-3 * progress,
    seed=3,
    n_jobs=2,
)


class SaveAt(BaseCallback):
    """Saves the model and the state of all envs before one rollout, and once inside it."""

    def __init__(self, rollout: int, folder: Path) -> None:
        super().__init__()
        self.rollout, self.folder, self.state = rollout, folder, None

    def _on_rollout_start(self) -> None:
        if self.model.n_rollouts == self.rollout:
            self.model.save(self.folder / "between")
            self.state = self.model.processes.env_state()

    def _on_step(self) -> bool:
        if self.model.n_rollouts == self.rollout and self.locals["n_steps"] == 5:
            self.model.save(self.folder / "inside")
        return True


def everything(model: DistributionalPPO) -> dict[str, Any]:
    found: dict[str, Any] = {f"policy/{name}": value for name, value in model.policy.state_dict().items()}
    for index, entry in model.policy.optimizer.state_dict()["state"].items():
        found |= {f"optimizer/{index}/{key}": value for key, value in entry.items()}
    state = model.processes.rollout_state()
    assert state is not None
    found |= {f"memory/{i}": part for i, part in enumerate(state.memory)}
    found |= {f"rng/{i}": rng["rng/torch"] for i, (_, rng) in enumerate(model.processes.rngs())}
    found |= {"observation": torch.as_tensor(state.observation), "starts": torch.as_tensor(state.starts)}
    return {name: torch.as_tensor(value).clone() for name, value in found.items()}


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|multiplier is at)")
def test_a_run_of_two_processes_that_was_stopped_equals_one_that_was_not_bit_for_bit(tmp_path):
    save = SaveAt(2, tmp_path)
    whole = DistributionalPPO(env=trading(), **FULL).learn(5 * ROLLOUT, callback=save)
    assert whole.num_timesteps == 5 * ROLLOUT
    assert [each.name for each in multiprocessing.active_children()] == ["leeward-worker-1"]
    wanted, metrics, owned = everything(whole), whole.last_metrics, states(whole)

    manifest, tensors = read_checkpoint(tmp_path / "between")
    assert (manifest["exact"], manifest["n_envs"], len(tensors["rollout/starts"])) == (True, ENVS, ENVS)
    env = trading()
    custom = {"learning_rate": FULL["learning_rate"]}
    again = DistributionalPPO.load(tmp_path / "between", env=env, force_reset=False, custom_objects=custom)
    env.load_state_dict(save.state)
    again.learn(5 * ROLLOUT - again.num_timesteps, reset_num_timesteps=False)
    found = everything(again)
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
    assert states(again) == owned
    assert again.last_metrics == metrics

    # Stopped, it is a plain model of all envs, and goes on where they stood when it learns again.
    before = everything(again)
    again.processes.stop()
    assert (again.processes._pool, again.n_envs, again.get_env()) == (None, ENVS, env)
    assert all(torch.equal(value, before[name]) for name, value in everything(again).items())

    # One process takes over the envs of two.
    env = trading()
    one = DistributionalPPO.load(
        tmp_path / "between", env=env, force_reset=False, custom_objects=custom | {"n_jobs": 1}
    )
    env.load_state_dict(save.state)
    one.learn(ROLLOUT, reset_num_timesteps=False)
    assert (one.processes._pool, one.num_timesteps) == (None, 3 * ROLLOUT)

    inside, _ = read_checkpoint(tmp_path / "inside")
    assert inside["exact"] is False
    assert "rollout" not in inside, "the other process cannot be asked where it stands"
    whole.processes.stop()
    assert multiprocessing.active_children() == []


def test_a_list_of_functions_gives_the_envs_of_a_dummyvecenv():
    one = DistributionalPPO(env=functions(), seed=3, **settings()).learn(2 * ROLLOUT)
    other = DistributionalPPO(env=DummyVecEnv(functions()), seed=3, **settings()).learn(2 * ROLLOUT)
    assert all(map(torch.equal, one.policy.state_dict().values(), other.policy.state_dict().values()))
    assert len(one.ep_info_buffer) > 0, "each env has a Monitor"


class StopAt(BaseCallback):
    """Asks to stop at one step, raises at another."""

    def __init__(self, stop: int | None = None, fail: int | None = None) -> None:
        super().__init__()
        self.stop, self.fail, self.processes = stop, fail, set()

    def _on_step(self) -> bool:
        self.processes.add(os.getpid())
        if self.n_calls == self.fail:
            raise ZeroDivisionError("in a callback")
        return self.n_calls != self.stop


def test_a_callback_of_the_first_process_stops_all_and_training_can_go_on(tmp_path, monkeypatch):
    model = DistributionalPPO(env=functions(), seed=3, n_jobs=2, **settings())
    stop = StopAt(stop=STEPS + 4)
    model.learn(4 * ROLLOUT, callback=stop)
    assert stop.processes == {os.getpid()}
    assert (model.n_rollouts, model.num_timesteps) == (1, ROLLOUT + 4 * ENVS)
    assert (model.n_envs, model.processes.n_envs) == (3, ENVS), "the first share is the larger one"
    bar = Mock()
    monkeypatch.setattr(callbacks, "tqdm", bar)
    model.learn(2 * ROLLOUT, reset_num_timesteps=False, progress_bar=True)
    assert (model.n_rollouts, model.num_timesteps) == (3, 3 * ROLLOUT + 4 * ENVS)
    bar.assert_called_once_with(total=2 * ROLLOUT)
    assert bar.return_value.update.call_args_list == [call(ENVS)] * 2 * STEPS, "the bar counts the envs of all"
    # Episodes of at most 7 steps: whatever the first share of 3 envs could finish, all 5 have finished more.
    assert len(model.ep_info_buffer) > 3 * 3 * STEPS / 7
    model.save(tmp_path / "m")
    manifest, _ = read_checkpoint(tmp_path / "m")
    assert manifest["exact"] is False, "envs made by functions cannot be asked for their state"

    with pytest.raises(ZeroDivisionError):
        model.learn(2 * ROLLOUT, callback=StopAt(fail=3))
    assert model.processes._pool is None
    assert multiprocessing.active_children() == []
    assert model.n_envs == ENVS, "and it can begin anew"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", r"worker 1 of n_jobs=2 \(envs 3 to 4\).* stopped: ValueError: the exchange is closed"),
        ("dies", r"worker 1 of n_jobs=2 \(envs 3 to 4\) died with exit code 7"),
        ("shows NaN", r"whose env 0 is env 3, stopped: env 0, step 7 of the rollout: observation holds nan"),
    ],
)
def test_a_worker_that_fails_is_named_and_nobody_waits_for_it(how, message):
    model = DistributionalPPO(env=functions(kind=FailingWalk, how=how), seed=3, n_jobs=2, **settings())
    with pytest.raises(WorkerFault, match=message):
        model.learn(4 * ROLLOUT)
    assert model.n_rollouts == 1, "the first rollout was whole"
    assert (model.processes._pool, multiprocessing.active_children()) == (None, [])


def test_an_env_that_fails_when_it_is_made_again_is_named():
    here = os.getpid()

    def make() -> Walk:
        assert os.getpid() == here, "only there"
        return Walk(0)

    model = DistributionalPPO(env=[make] * 2, n_jobs=2, **settings())
    with pytest.raises(WorkerFault, match=r"worker 1 of n_jobs=2 \(envs 1 to 1\).*AssertionError: only there"):
        model.learn(10)
    assert multiprocessing.active_children() == []


def test_images_and_dicts_are_shared_too():
    model = DistributionalPPO(
        env=functions(2, kind=SeenWalk), n_jobs=2, seed=3, **settings(policy="MultiInputLstmPolicy")
    )
    model.learn(2 * STEPS)
    state = model.processes.rollout_state()
    assert state is not None
    assert state.observation["image"].shape == (2, 1, 36, 36)
    assert state.observation["image"][:, 0, 0, 0].tolist() == [0, 1], "in the order of the envs"
    assert [part.shape[1] for part in state.memory] == [2] * len(state.memory)
    model.processes.stop()


def test_an_id_makes_one_env_for_each_process():
    model = DistributionalPPO(env="CartPole-v1", n_jobs=3, seed=1, **settings())
    assert model.n_envs == 3
    assert len({env.unwrapped for env in model.get_env().envs}) == 3


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda: DummyVecEnv(functions()), "a DummyVecEnv cannot be made again; pass an env id, a list of functions"),
        (lambda: gymnasium.make("CartPole-v1"), "a DummyVecEnv cannot be made again"),
        (lambda: VecNormalize(trading()), "a VecNormalize cannot be made again"),
        (lambda: RunningReturnVecEnv(DummyVecEnv(functions())), "a RunningReturnVecEnv cannot be made again"),
        (lambda: functions(1), "n_jobs=2 processes share the envs, and there are 1; pass at least 2 envs"),
    ],
)
def test_an_env_that_cannot_be_shared_is_refused(env, message):
    with pytest.raises(ArgumentError, match=message):
        DistributionalPPO(env=env(), n_jobs=2, **settings())


def test_jobs_are_a_whole_number_of_at_least_one():
    with pytest.raises(ConfigError, match="DistributionalPPO: n_jobs: Input should be greater than 0, got 0"):
        DistributionalPPO(env=functions(), n_jobs=0, **settings())


def test_what_cannot_be_sent_to_another_process_is_said():
    lock = threading.Lock()

    def make() -> Walk:
        with lock:
            return Walk(0)

    model = DistributionalPPO(env=[make] * 2, n_jobs=2, **settings())
    with pytest.raises(ArgumentError, match=r"sent to another process: cannot pickle '_thread\.lock' object"):
        model.learn(10)
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_while_it_waits_is_named_at_the_next_question(tmp_path):
    model = DistributionalPPO(env=functions(3), n_jobs=3, seed=3, **settings()).learn(3 * STEPS)
    multiprocessing.active_children()[0].kill()
    with pytest.raises(WorkerFault, match=r"worker \d of n_jobs=3 \(envs (\d) to \1\) died with exit code -9"):
        model.save(tmp_path / "m")
    assert (model.processes._pool, multiprocessing.active_children()) == (None, [])
    model.save(tmp_path / "m")
    assert read_checkpoint(tmp_path / "m")[0]["n_envs"] == 3


@pytest.fixture
def fleeting(bounded):
    """No worker outlives the test, a stopped one neither."""
    yield
    for process in multiprocessing.active_children():
        process.kill()


Then = Callable[[int], Any]  # gets the number of the process that was stopped


def freeze(then: Then) -> None:
    """Stop the only worker."""
    (process,) = multiprocessing.active_children()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    then(process.pid)


class FreezeAt(BaseCallback):
    """Stops the worker inside a rollout."""

    def __init__(self, then: Then) -> None:
        super().__init__()
        self.then = then

    def _on_step(self) -> bool:
        if self.n_calls == STEPS + 4:
            freeze(self.then)
        return True


def in_a_rollout(model: DistributionalPPO, folder: Path, then: Then) -> None:
    model.learn(2 * ROLLOUT, callback=FreezeAt(then))


def between_two(model: DistributionalPPO, folder: Path, then: Then) -> None:
    freeze(then)
    model.save(folder / "m")


def at_the_start(model: DistributionalPPO, folder: Path, then: Then) -> None:
    freeze(then)
    model.learn(ROLLOUT)


def wide_model() -> DistributionalPPO:
    """A trained model whose weights are more than a pipe holds while nobody reads."""
    wide = {"net_arch": [300, 300], "lstm_hidden_size": 8}
    model = DistributionalPPO(env=functions(), seed=3, n_jobs=2, **settings(n_epochs=1, policy_kwargs=wide))
    return model.learn(ROLLOUT)


STOPPED = r"worker 1 of n_jobs=2 \(envs 3 to 4\) has been stopped by a signal for 2 s; resume the run"
WHERE = {
    in_a_rollout: STOPPED,
    between_two: STOPPED,
    at_the_start: STOPPED,
}


@pytest.mark.parametrize("act", WHERE)
def test_a_worker_that_is_stopped_is_named_and_not_waited_for_without_end(act, monkeypatch, fleeting, tmp_path):
    model = wide_model()
    monkeypatch.setattr(worker_pool, "_FAREWELL", 0.1)
    # Only of a worker that is stopped: on a busy machine a healthy one may take longer.
    with pytest.raises(WorkerFault, match=WHERE[act]):
        act(model, tmp_path, lambda process: monkeypatch.setattr(worker_pool, "_STUCK", 2.0))
    assert (model.processes._pool, multiprocessing.active_children()) == (None, [])


def half_a_message(model: DistributionalPPO) -> tuple[Any, Any]:
    """The worker's connection, which is now another one: it says that 100 bytes come, gives none and takes none."""
    channels = model.processes._pool._channels
    own = channels[0]
    channels[0], there = multiprocessing.Pipe()
    os.write(there.fileno(), struct.pack("!i", 100))
    return own, there


SILENT = r"worker 1 of n_jobs=2 \(envs 3 to 4\) runs, and has taken and given nothing for 2 s; look at"


@pytest.mark.parametrize("act", [between_two, at_the_start])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_worker_that_gives_half_a_message_is_named_and_whether_it_is_stopped(
    act, stopped, monkeypatch, fleeting, tmp_path
):
    model = wide_model()
    monkeypatch.setattr(worker_pool, "_FAREWELL", 0.1)
    if not stopped:
        monkeypatch.setitem(globals(), "freeze", lambda then: then(0))

    def then(process: int) -> None:
        monkeypatch.setattr(worker_pool, "_STUCK", 2.0)
        kept.extend(half_a_message(model))

    kept: list[Any] = []  # a worker whose connection is closed ends
    with pytest.raises(WorkerFault, match=STOPPED if stopped else SILENT):
        act(model, tmp_path, then)
    assert (model.processes._pool, multiprocessing.active_children()) == (None, [])
    for connection in kept:
        connection.close()


def test_a_worker_that_was_continued_unseen_is_stopped_anew(monkeypatch):
    monkeypatch.setattr(worker_pool, "_LOOK", 0.02)
    monkeypatch.setattr(worker_pool, "_STUCK", 1.0)
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    process.start()
    stopped = worker_pool._Stopped([process], n_envs=2)
    try:
        for _ in range(2):  # between the two it may run, and nobody looks
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            assert stopped.fault() is None
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(1.2)
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("act", WHERE)
def test_ctrl_c_is_heard_while_a_worker_is_stopped(act, fleeting, tmp_path):
    model = wide_model()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    impatient = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        act(model, tmp_path, lambda process: impatient.start())
    signal.signal(signal.SIGINT, before)
    if model.processes._pool is not None:
        model.processes._pool.close()
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_continued_in_time_changes_nothing(fleeting):
    run = {"env": functions(), "seed": 3, "n_jobs": 2, **settings()}

    def go_on(process: int) -> None:
        threading.Timer(2.5, os.kill, (process, signal.SIGCONT)).start()

    model = DistributionalPPO(**run).learn(2 * ROLLOUT, callback=FreezeAt(go_on))
    other = DistributionalPPO(**run).learn(2 * ROLLOUT)
    assert all(map(torch.equal, model.policy.state_dict().values(), other.policy.state_dict().values()))
    model.processes.stop()
    other.processes.stop()


def test_a_setting_that_changes_reaches_every_process_and_a_new_env_ends_them():
    model = DistributionalPPO(env=functions(4), n_jobs=2, seed=3, **settings()).learn(4 * STEPS)
    model.learning_rate = 0.05
    model.learn(4 * STEPS, reset_num_timesteps=False)
    assert model.last_metrics["train/learning_rate"] == 0.05
    model.set_env([partial(Walk, index) for index in range(4)])
    assert (model.processes._pool, multiprocessing.active_children()) == (None, [])
    assert model.n_envs == 4
    with pytest.raises(ArgumentError, match="cannot be made again"):
        model.set_env(DummyVecEnv(functions(4)))
