"""Processes that somebody else has started train what those of `n_jobs` train, bit for bit."""

import multiprocessing
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from torch.distributed import FileStore, ProcessGroupGloo

from leeward import DistributionalPPO
from leeward.algorithm.parallel.peers import PeerPool, Peers, serve
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import ArgumentError, WorkerFault

from ..support.replicas import STEPS, settings
from ..support.walk_envs import ENVS

ROLLOUT = ENVS * STEPS
# Dropout draws from a worker's own generator, so that one that starts from another number shows.
ARGUMENTS: dict[str, Any] = settings(
    policy_kwargs={"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.3}}, learning_rate=0.01, seed=3, n_jobs=2
)


def _group(store: str, rank: int) -> ProcessGroupGloo:
    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=60)
    return ProcessGroupGloo(FileStore(store, 2), rank, 2, options)


def _peers(folder: str, rank: int) -> Peers:
    return Peers(_group(f"{folder}/engine", rank), _group(f"{folder}/orders", rank))


def _peer(folder: str) -> None:
    serve(_peers(folder, 1))


class _Midway(BaseCallback):
    """A setting changes after the first update, and a save asks the worker where its envs are."""

    def _on_rollout_start(self) -> None:
        if self.model.n_rollouts == 1:
            self.model.set_hyperparameters(learning_rate=0.002, clip_range=0.1)
            self.state = self.model.processes.env_state()

    def _on_step(self) -> bool:
        return True


def _learned(model: DistributionalPPO) -> tuple[dict[str, torch.Tensor], Any]:
    midway = _Midway()
    model.learn(3 * ROLLOUT, callback=midway)
    model.processes.stop()
    return {name: value.clone() for name, value in model.policy.state_dict().items()}, midway.state


def _model() -> DistributionalPPO:
    return DistributionalPPO(env=TradingVecEnv("sample:synthetic", ENVS, seed=4, episode_bars=9), **ARGUMENTS)


def test_peers_train_what_the_processes_of_this_machine_train(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_peer, args=(str(tmp_path),), daemon=True)
    process.start()
    model = _model()
    model.processes.launch = partial(PeerPool, _peers(str(tmp_path), 0))
    weights, state = _learned(model)
    process.join(60)
    assert process.exitcode == 0  # it was let go
    expected, expected_state = _learned(_model())
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    assert repr(state) == repr(expected_state)


def test_a_peer_that_dies_is_an_error_of_the_first_process(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_peer, args=(str(tmp_path),), daemon=True)
    process.start()
    model = _model()
    model.processes.launch = partial(PeerPool, _peers(str(tmp_path), 0))

    class Kill(BaseCallback):
        def _on_step(self) -> bool:
            if self.model.n_rollouts == 1:
                process.kill()
                process.join()
            return True

    with pytest.raises(WorkerFault, match="process 0 of 2 lost the others"):
        model.learn(3 * ROLLOUT, callback=Kill())
    assert model.processes.n_envs == ENVS  # alone again, with all envs


def test_another_number_of_processes_than_the_config_says_is_refused(tmp_path):
    peers = Peers(None, type("Three", (), {"size": lambda self: 3})())
    with pytest.raises(ArgumentError, match="3 processes were started, and n_jobs is 2"):
        PeerPool(peers, _model(), TradingVecEnv("sample:synthetic", ENVS), None, [])
