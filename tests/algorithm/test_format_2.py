"""Files of leeward 0.1.0 (format 2) load: predictions, state and training go on. The files are that version's own."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from leeward import DistributionalPPO
from leeward.algorithm.checkpoint import read_checkpoint
from leeward.training.checkpoints import load_model
from leeward.training.run_dir import RunDir
from leeward.training.trainer import train

from ..support.staggered_envs import staggered

FILES = Path(__file__).parents[1] / "support" / "files" / "format_2"
MODELS = ("memory", "categorical", "own_tail")


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_file_of_format_2_predicts_what_it_predicted(name):
    told, model = expected(name), DistributionalPPO.load(FILES / f"{name}.zip", device="cpu")
    seen = np.array(told["observation"], dtype=np.float32)
    outlook = model.predict_distribution(seen)
    assert_allclose(outlook.levels, told["levels"], rtol=0, atol=0)
    assert_allclose(outlook.quantiles, told["quantiles"], rtol=1e-5, atol=1e-6)
    assert_allclose(outlook.cvar(0.1), told["cvar"], rtol=1e-5, atol=1e-6)
    assert_allclose(model.predict(seen, deterministic=True)[0], told["action"], rtol=1e-5, atol=1e-6)
    if "step_quantiles" in told:
        assert_allclose(outlook.step.quantiles, told["step_quantiles"], rtol=1e-5, atol=1e-6)


def test_the_state_of_every_owner_comes_back():
    told, model = expected("memory")["state"], DistributionalPPO.load(FILES / "memory.zip", device="cpu")
    state = {name: owner.state_dict() for name, owner in model.owners().items()}
    assert state["finite_guard"] == {"consecutive": told.pop("consecutive_skips")}
    for constraint in told["risk"]["constraints"]:
        constraint |= {"rises": 0, "widest": 0.0}  # not kept then
    for name, values in told.items():
        assert json.loads(json.dumps(state[name])) == values, name
    assert state["counters"]["num_timesteps"] == model.num_timesteps == 3 * 23 * 3
    assert model.engine.variance_scaler is not None and model.engine.variance_scaler.steps > 0
    assert [risk.alpha for risk in model.risk] == [0.2, 0.3]


def test_counters_and_episodes_come_back(tmp_path):
    with zipfile.ZipFile(FILES / "memory.zip") as file:
        parts = {name: file.read(name) for name in file.namelist()}
    told = json.loads(parts["manifest.json"])
    told["state"]["consecutive_skips"], told["stats_window_size"] = (
        2,
        40,
    )  # neither is what it would be without the file
    parts["manifest.json"] = json.dumps(told).encode()
    with zipfile.ZipFile(tmp_path / "memory.zip", "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    model = DistributionalPPO.load(tmp_path / "memory.zip", device="cpu")
    assert (model.num_timesteps, model.n_rollouts, model._n_updates, model.stream_seed) == (207, 3, 6, 3)
    assert model.engine.updater.pipeline.guard.consecutive == 2
    assert model.stats_window_size == model.ep_info_buffer.maxlen == 40
    assert len(told["episodes"]["info"]) == 42  # of which the newest 40 are kept
    assert [info["r"] for info in model.ep_info_buffer][-2:] == [-1.496829, -2.676557]


@pytest.mark.filterwarnings("ignore:risk")  # of whole episodes, and of few outcomes
@pytest.mark.parametrize("name", MODELS)
def test_training_goes_on_from_a_file_of_format_2(name):
    model = DistributionalPPO.load(FILES / f"{name}.zip", env=staggered(3), device="cpu")
    before = {key: value.clone() for key, value in model.policy.state_dict().items()}
    model.learn(3 * 23, reset_num_timesteps=False)
    after = model.policy.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_the_levels_are_those_the_weights_were_trained_at_whatever_alpha_would_say_today():
    # That version's grid looked at 0.05 unless told otherwise, and the constraints of this file have 0.2 and 0.3.
    model = DistributionalPPO.load(FILES / "memory.zip", device="cpu")
    assert int((model.policy.critic.levels < 0.05).sum()) == 8
    assert model.settings.tail_alpha == 0.2
    # The grid of the next step looked at the first constraint.
    assert int((model.policy.risk_heads.step_critic.levels < 0.2).sum()) == 8
    own = DistributionalPPO.load(FILES / "own_tail.zip", device="cpu")
    assert int((own.policy.critic.levels < 0.1).sum()) == 8
    assert "tail_alpha" not in own.policy_kwargs


def test_weights_alone_can_be_taken_from_a_file_of_format_2():
    model = DistributionalPPO.load(FILES / "categorical.zip", env=staggered(3), device="cpu")
    other = DistributionalPPO.load(FILES / "categorical.zip", env=staggered(3), device="cpu")
    model.learn(3 * 23, reset_num_timesteps=False)
    model.set_parameters(FILES / "categorical.zip")
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.policy.state_dict().values(), other.policy.state_dict().values(), strict=True)
    )
    assert model.engine.critic_unit.returns.unit == other.policy.critic.unit


def test_what_is_saved_again_is_of_the_present_format_and_the_same(tmp_path):
    model = DistributionalPPO.load(FILES / "memory.zip", device="cpu")
    model.save(tmp_path / "again")
    manifest, _ = read_checkpoint(tmp_path / "again.zip")
    assert manifest["version"] == manifest["written_as"] == 4
    again = DistributionalPPO.load(tmp_path / "again", device="cpu")
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.policy.state_dict().values(), again.policy.state_dict().values(), strict=True)
    )


def test_a_run_directory_of_0_1_0_is_read_and_goes_on_to_its_end(tmp_path):
    shutil.copytree(FILES / "run", tmp_path / "run")
    run = RunDir.open(tmp_path / "run")
    assert run.config().risk[0].limit == -0.02
    assert load_model(run.best_checkpoint()).num_timesteps > 0
    with pytest.warns(UserWarning, match="batch_size 1024 is larger than a rollout"):
        train(run, run.market(), lambda progress: None, resume=True)
    assert [path.name for path in run.checkpoint_list()] == ["00000006", "00000008"]
    assert load_model(run.checkpoint_list()[-1]).num_timesteps == 2048
