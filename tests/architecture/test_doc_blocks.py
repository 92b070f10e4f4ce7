"""The code of the pages runs: Python, configs, and the commands of the quickstart. All of it with fewer steps.

A block goes on in the names of the blocks before it on its page. What a page takes for granted, such as `env` or
`model`, is listed in `GIVEN`. `learn` is shortened: whatever is asked of it, it trains on one rollout of `STEPS` steps;
a backtest draws less often. The `leeward` commands get the settings of `SHORT`. All of it happens in a directory that
holds nothing but a `bars.csv`.
"""

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv
from typer.testing import CliRunner

from leeward import DistributionalPPO, backtest
from leeward.cli.app import app
from leeward.config.load import load_config
from leeward.config.trading import DataConfig, EnvConfig
from leeward.env.sb3 import TradingVecEnv
from leeward.market import Market, load, prepare
from leeward.training.run_dir import RunDir
from leeward.training.trainer import train

from ..support.pages import PAGES, ROOT, Block, blocks, commands, spans

STEPS = 8  # of each env
SHORT = [
    "--steps=256",
    *(f"--set=ppo.{setting}" for setting in ("n_envs=4", "n_steps=64", "n_epochs=1", "batch_size=256")),
    *("--set=policy.lstm_hidden_size=8", "--set=policy.net_arch=[8]"),
    *(
        "--set=data.splits.train=0.92",
        "--set=data.splits.validation=0.04",
    ),  # short splits, of which all bars are played
    *("--set=backtest.n_draws=20", "--set=backtest.n_offsets=10", "--set=risk.limit=-0.5"),
]


@cache
def market() -> Market:
    """A few bars with a feature of short memory, so that the splits can be short."""
    return prepare(DataConfig(source="sample:synthetic", n_bars=48, features=("return_1",)))


def trading(n_envs: int = 2) -> TradingVecEnv:
    return TradingVecEnv(market(), n_envs, episode_bars=16)


def asked_of(env: VecEnv) -> dict[str, Any]:
    return {"env": env, "obs": env.reset(), "state": None, "starts": np.ones(env.num_envs, dtype=bool)}


def trained(env: VecEnv) -> DistributionalPPO:
    return DistributionalPPO("MlpPolicy", env, seed=0, policy_kwargs={"net_arch": [8]}).learn(1)


def checkpoints() -> dict[str, Any]:
    env = make_vec_env("CartPole-v1", 2)
    return {"DistributionalPPO": DistributionalPPO, "env": env, "model": trained(env), "total": 64}


def dataset() -> dict[str, Any]:
    seen, done = np.zeros((40, 4), np.float32), np.zeros(40, int)
    model = trained(make_vec_env("CartPole-v1", 2))
    return {"observations": seen, "actions": done, "starts": np.arange(40) % 20 == 0, "model": model}


def a_model_and_a_run() -> dict[str, Any]:
    """A model for the bars that the page loads, and a run on others whose splits are a few bars long."""
    settings = ["data.source=sample:synthetic", "data.n_bars=160", "data.features=[return_1]", "policy.name=MlpPolicy"]
    shares = [
        "data.splits.train=0.9",
        "data.splits.validation=0.05",
        "policy.net_arch=[8]",
        "ppo.n_envs=2",
        "ppo.batch_size=256",
    ]
    config = load_config(None, [*settings, *shares, "risk.limit=-0.5", "backtest.n_draws=20", "backtest.n_offsets=10"])
    run = RunDir.create(Path("runs/first"), config)
    train(run, prepare(config.data), lambda progress: None, resume=False)
    return {"model": trained(TradingVecEnv("sample:nasdaq", 2))}


def a_step_of_learning() -> dict[str, Any]:
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    return {"env": trading(), "network": network, "loss": network(torch.ones(1, 3)).sum(), "optimizer": optimizer}


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "README.md": lambda: asked_of(trading()),
    "docs/from-sb3.md": lambda: asked_of(make_vec_env("CartPole-v1", 1)),
    "docs/audit.md": lambda: {"model": trained(make_vec_env("CartPole-v1", 2))},
    "docs/checkpoints.md": checkpoints,
    "docs/reading-a-run.md": lambda: {
        "DistributionalPPO": DistributionalPPO,
        "env": make_vec_env("CartPole-v1", 2),
    },
    "docs/several-processes.md": lambda: {"make_env": lambda own: trading(own.stop - own.start)},
    "docs/ideas/backtest.md": a_model_and_a_run,
    "docs/ideas/behaviour-cloning.md": dataset,
    "docs/ideas/risk.md": lambda: {"env": trading()},
    "docs/ideas/state-adversary.md": lambda: {"env": trading(), "market": market(), "env_config": EnvConfig()},
    "docs/ideas/upgd.md": a_step_of_learning,
    "docs/ideas/variance-scaling.md": a_step_of_learning,
}


@cache
def csv_of_bars() -> str:
    bars = load("sample:synthetic", DataConfig(n_bars=2400))
    columns = [bars.time, *(getattr(bars, name)[:, 0] for name in ("open", "high", "low", "close", "volume"))]
    lines = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join(["time,open,high,low,close,volume", *lines])


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A directory of its own with a file of bars; afterwards torch has the threads it had."""
    monkeypatch.chdir(tmp_path)
    Path("bars.csv").write_text(csv_of_bars(), encoding="utf-8")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    learn = DistributionalPPO.learn

    def shortened(model: DistributionalPPO, total: int, *arguments: Any, **options: Any) -> DistributionalPPO:
        model.set_hyperparameters(n_steps=STEPS, n_epochs=1, batch_size=None)
        return learn(model, min(total, STEPS * model.n_envs), *arguments, **options)

    monkeypatch.setattr(DistributionalPPO, "learn", shortened)
    monkeypatch.setattr(backtest, "run_backtest", partial(backtest.run_backtest, n_draws=20, n_offsets=10))


@pytest.fixture
def _in_a_process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a launcher does before a script of its own runs."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch sets its own
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.usefixtures("_short", "_in_a_process_group")
@pytest.mark.filterwarnings("ignore:risk. the tail is measured on")  # few outcomes, since there are few steps
@pytest.mark.filterwarnings("ignore:rich is experimental")  # what tqdm says of the progress bar
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_the_python_of_a_page_runs(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"} | GIVEN.get(name_of(page), dict)()
    for block in blocks(page, "python"):
        # Behind as many empty lines as stand above it, so that an error names the line of the page.
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)


def test_every_attribute_of_a_model_that_a_page_names_is_there() -> None:
    named = {match[1] for page in PAGES for span in spans(page) if (match := re.match(r"model((?:\.[a-z_]+)+)", span))}
    model = DistributionalPPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]})
    for name in named - {".zip"}:
        attrgetter(name[1:])(model)


def test_every_block_says_what_language_it_is() -> None:
    found = {(name_of(page), block.language) for page in PAGES for block in blocks(page)}
    assert {(page, language) for page, language in found if language not in ("python", "sh", "yaml", "text")} == set()


CONFIGS = {f"{name_of(page)}:{block.line}": block for page in PAGES for block in blocks(page, "yaml")}


@pytest.mark.parametrize("block", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_config_on_a_page_is_valid_and_changes_something(block: Block) -> None:
    Path("my.yaml").write_text(block.text, encoding="utf-8")
    assert load_config(Path("my.yaml")) != load_config()


@pytest.mark.filterwarnings("ignore:risk. the tail is measured on")
def test_the_commands_of_the_quickstart_run_in_their_order() -> None:
    ran = [words[1:] for words in commands(ROOT / "docs" / "quickstart.md") if words[0] == "leeward"]
    for words in ran:
        shown = CliRunner().invoke(app, shorter(words), catch_exceptions=False)
        assert shown.exit_code == 0, f"leeward {shlex.join(words)}\n{shown.output}"
    assert [words[0] for words in ran] == ["--help", "train", "backtest", "report", "train", "data", "train"]
    assert Path("runs/first/report.html").is_file() and Path("runs/first/backtest/test/metrics.json").is_file()


def shorter(words: list[str]) -> list[str]:
    """A training with fewer steps, in the place of those it asks for; any other command as it is."""
    if words[0] != "train":
        return words
    at = words.index("--steps") if "--steps" in words else len(words)
    return words[:at] + words[at + 2 :] + SHORT
