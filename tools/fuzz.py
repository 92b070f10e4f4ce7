"""`make fuzz`: bad checkpoints, configs, files of bars and run files. Each is refused in clean words, or harmless.

    python -m tools.fuzz [--cases 1000] [--seed 0] [TARGET ...]

A case is bad when it ends in another exception than one of ours, takes more than 10 s of a processor, or lets something
pass that is not what was written. The whole process may take 1 GiB more than it had at the start.
"""

import argparse
import copy
import gzip
import io
import json
import math
import os
import random
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from safetensors.torch import save as save_tensors

from leeward import DistributionalPPO, cli
from leeward.algorithm.checkpoint import read_checkpoint
from leeward.backtest import read_backtest
from leeward.config.load import load_config
from leeward.config.run import RunConfig
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import LeewardError
from leeward.market import check, load
from leeward.report import write_report
from leeward.training.checkpoints import load_model, read_trainer_state, restore_env
from leeward.training.logs import ProgressFile
from leeward.training.run_dir import RunDir
from leeward.training.testing import backtest_run
from tools.runs import TINY, forked, go_on, market_of, numbers_of

__all__ = ["TARGETS", "main", "run_target"]

_SECONDS, _MEMORY = 10.0, 1 << 20  # of a case; kB that all of them may add
_REFERENCE = Path(__file__).parents[1] / "configs" / "reference.yaml"
NONSENSE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(10**30), 10**400, 0.5, -0.5, 1e300, math.nan, math.inf, -math.inf, "",
    "text", "1", "../../etc/passwd", "=1+1", "<b>x</b>", "\x00", "x" * 1000, [], [1], [[]], [None] * 10, {}, {"a": 1},
    {"$tuple": [1]}, {"$tuple": 1}, {"$dict": [[1]]}, {"$name": "os:system"}, {"$name": 3}, {"$missing": "x"},
    {"$config": "leeward.config.run:RunConfig", "values": {}}, {"$schedule": "linear", "values": []},
)  # fmt: skip
Case = tuple[str, Callable[[], str]]  # what it is, and a function that says how it ended


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, each in items:
        yield from _leaves(each, (*path, key))


def _with(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    changed = copy.deepcopy(value)
    here = changed
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = leaf
    return changed


def _damaged(content: bytes, rng: random.Random) -> bytes:
    """A bit flipped, a part cut, doubled, or filled with something else."""
    data, place = bytearray(content), rng.randrange(max(len(content), 1))
    kind = rng.randrange(5)
    if kind == 0 and data:
        data[place] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[place:]
    elif kind == 2:
        data[place:place] = rng.randbytes(rng.randrange(1, 50))
    elif kind == 3:
        data[place : place + rng.randrange(1, 200)] = b""
    else:
        data[place:place] = data[: rng.randrange(1, 400)]
    return bytes(data)


# --- targets ----------------------------------------------------------------------------------------------------------


def checkpoints(cases: int, rng: random.Random, folder: Path) -> Iterator[Case]:
    """Manifests with nonsense in every place, damaged zips, and sizes that are lies."""
    path = folder / "run"
    go_on(path, (*TINY, "ppo.total_steps=320", "risk.limit=-0.01", "ppo.vgs={}"), market_of(TINY))
    file = next(iter(RunDir(path).checkpoint_list())) / "model.zip"
    content = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        blob = archive.read("tensors.safetensors")
    tensors = read_checkpoint(file)[1]
    expected = numbers_of(file.parent)
    paths = list(_leaves({key: value for key, value in manifest.items() if key != "rng"}))

    def loaded(data: bytes, *, same: bool) -> str:
        (folder / "case.zip").write_bytes(data)
        model = DistributionalPPO.load(folder / "case.zip", device="cpu")
        model.predict(model.observation_space.sample()[None], deterministic=True)
        found = read_checkpoint(folder / "case.zip")[1]
        if same and {name: np.asarray(tensor).tobytes() for name, tensor in found.items()} != expected:
            return "SILENT"
        return "harmless"

    def packed(described: Any, weights: bytes, **options: Any) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", **options) as archive:
            archive.writestr("manifest.json", json.dumps(described))
            archive.writestr("tensors.safetensors", weights)
        return out.getvalue()

    for number in range(cases):
        if number % 4 < 2:
            place, leaf = rng.choice(paths), rng.choice(NONSENSE)
            data, same, what = packed(_with(manifest, place, leaf), blob), True, f"{place} = {leaf!r:.40}"
        elif number % 4 == 2:
            data, same, what = _damaged(content, rng), True, "damaged zip"
        else:
            name = rng.choice(list(tensors))
            other = tensors | {
                name: rng.choice([tensors[name].flatten()[:-1], tensors[name].double(), tensors[name][None]])
            }
            data, same, what = packed(manifest, save_tensors(other)), False, f"tensor {name}"
            if number % 40 == 3:
                data = packed(manifest, bytes(1 << 28), compression=zipfile.ZIP_DEFLATED)
        yield what, lambda data=data, same=same: loaded(data, same=same)  # type: ignore[misc]


def configs(cases: int, rng: random.Random, folder: Path) -> Iterator[Case]:
    """Every leaf of the reference with nonsense, then damaged text."""
    text = _REFERENCE.read_bytes()
    reference = yaml.safe_load(text)
    leaves = [(path, leaf) for path in _leaves(reference) for leaf in NONSENSE]
    rng.shuffle(leaves)

    def read(values: Any) -> str:
        return "harmless" if RunConfig.read(values, where="case") else "SILENT"

    def read_text(data: bytes) -> str:
        (folder / "case.yaml").write_bytes(data)
        return "harmless" if load_config(folder / "case.yaml") else "SILENT"

    for number in range(cases):
        if number % 3 and leaves:
            path, leaf = leaves.pop()
            yield f"{path} = {leaf!r:.40}", lambda path=path, leaf=leaf: read(_with(reference, path, leaf))  # type: ignore[misc]
        else:
            data = _damaged(text, rng)
            yield "damaged text", lambda data=data: read_text(data)  # type: ignore[misc]


def data(cases: int, rng: random.Random, folder: Path) -> Iterator[Case]:
    """Files of bars: cells that are nonsense, damaged text, gzip, Parquet and Feather, odd separators and line ends."""
    times = pd.date_range("2020-01-01", periods=60, freq="D")
    price = 100 + np.arange(60) * 0.1
    frame = pd.DataFrame({"time": times.astype(str), "tic": "AAA", "open": price, "high": price + 1, "low": price - 1,
                          "close": price, "volume": 5.0, "feature_x": 0.5})  # fmt: skip
    text = frame.to_csv(index=False)
    cells = ["", "nan", "-1", "0", "inf", "1e400", "text", "3000-01-01", "1600-01-01", "2020-02-30", "202401020930",
             "=1+1", "<b>", "x" * 70, "x" * 140_000, '"', "\x1b[31m", "2020-01-02 10:00+05", "12/31/2020",
             "99999999999999999999"]  # fmt: skip
    binary = {"case.parquet": io.BytesIO(), "case.feather": io.BytesIO()}
    frame.to_parquet(binary["case.parquet"])
    frame.to_feather(binary["case.feather"])

    def read(name: str, content: bytes) -> str:
        path = folder / name
        path.write_bytes(content)
        try:
            problems = [str(problem) for problem in check(str(path))]
            assert all("Traceback" not in problem for problem in problems)
            load(str(path))
        finally:
            path.unlink()
        return "harmless"

    for number in range(cases):
        kind = number % 5
        if kind < 2:
            lines = [line.split(",") for line in text.splitlines()]
            for _ in range(rng.randrange(1, 4)):
                row = rng.choice(lines)
                row[rng.randrange(len(row))] = rng.choice(cells)
            joined = rng.choice(["\n", "\r\n", "\r"]).join(rng.choice([",", ";", "\t"]).join(row) for row in lines)
            case = ("case.csv", joined.encode())
        elif kind == 2:
            case = ("case.csv", _damaged(text.encode(), rng))
        elif kind == 3:
            case = ("case.csv.gz", _damaged(gzip.compress(text.encode()), rng))
        else:
            name = rng.choice(list(binary))
            case = (name, _damaged(binary[name].getvalue(), rng))
        yield f"{case[0]} {case[1][:40]!r}", lambda case=case: read(*case)  # type: ignore[misc]


def run_files(cases: int, rng: random.Random, folder: Path) -> Iterator[Case]:
    """Each file of a run with bits flipped and cut: what is read then is what was written, or a clean refusal."""
    path = folder / "run"
    settings = (*TINY, "backtest.n_draws=50", "backtest.n_offsets=20")
    market = market_of(settings)
    go_on(path, settings, market)
    run = RunDir.open(path)
    backtest_run(run, market, "validation").write(path / "backtest" / "validation")
    write_report(path)
    config, scaler = run.config(), run.scaler()
    older, newest = run.checkpoint_list()
    weights = {place: numbers_of(place) for place in (older, newest, run.best)}
    env = TradingVecEnv(market, config.ppo.n_envs, config=config.env, seed=config.seed)

    def whole(place: Path) -> str:
        load_model(place, env)
        restore_env(place, env)
        read_trainer_state(place)
        return "harmless" if numbers_of(place) == weights[place] else "SILENT"

    def read(file: Path) -> str:
        if file.parent in weights:
            return whole(file.parent)
        if file.parent.parent.name == "backtest":
            read_backtest(file.parent)
            return "harmless"  # numbers that are shown, and can be made again
        if file.name == "progress.csv":
            ProgressFile.rows_of(file)
            return "harmless"  # a log
        if file == run.bars_file:
            run.trained_on()
        if file.suffix in (".json", ".yaml"):
            if run.config() != config or run.checked_scaler().difference(scaler) is not None:
                return "SILENT"
            if run.record().get("data_fingerprint") not in (None, market.fingerprint):
                run.bind(market)
        return "harmless"

    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    for file in files:
        content = file.read_bytes()
        if not content:  # alerts.jsonl of a run without any
            continue
        flips = [("flip", rng.randrange(8 * len(content))) for _ in range(cases * 5 // 6)]
        for kind, at in (*flips, *(("cut", rng.randrange(len(content))) for _ in range(cases // 6))):

            def damaged(file: Path = file, content: bytes = content, kind: str = kind, at: int = at) -> str:
                other = bytearray(content)
                if kind == "flip":
                    other[at // 8] ^= 1 << at % 8
                else:
                    del other[at:]
                file.write_bytes(bytes(other))
                try:
                    return read(file)
                finally:
                    file.write_bytes(content)

            yield f"{file.relative_to(path)} {kind} {at}", damaged


def commands(cases: int, rng: random.Random, folder: Path) -> Iterator[Case]:
    """`leeward train --resume` on runs with one damaged file: exit code 0, or 1 with clean lines."""
    whole = folder / "whole"
    settings = (*TINY, "backtest.n_draws=50", "backtest.n_offsets=20")
    go_on(whole, settings, market_of(settings))
    files = sorted(file.relative_to(whole) for file in whole.rglob("*") if file.is_file() and file.name[0] != ".")

    def resumed(number: int) -> str:
        run, log = folder / f"run{number}", folder / f"log{number}"
        shutil.copytree(whole, run)
        file = run / files[number % len(files)]
        file.write_bytes(_damaged(file.read_bytes(), rng))

        def work() -> None:
            sys.argv = ["leeward", "train", "--resume", str(run), "--quiet"]
            try:
                cli.main()
            except SystemExit as end:
                if end.code not in (0, 1):
                    raise

        os.waitpid(forked(work, log), 0)
        said = log.read_text()
        shutil.rmtree(run)
        if "Traceback" in said:
            raise RuntimeError(said[-2000:])
        return "harmless" if "error:" not in said else "refused by the command"

    for number in range(cases):
        yield f"{files[number % len(files)]}", lambda number=number: resumed(number)  # type: ignore[misc]


TARGETS: dict[str, Callable[[int, random.Random, Path], Iterator[Case]]] = {
    "checkpoints": checkpoints,
    "configs": configs,
    "data": data,
    "run_files": run_files,
    "commands": commands,
}


def _worked() -> float:
    """Seconds that this process and its children have worked: what does not depend on who else is at work."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run_target(name: str, cases: int, seed: int = 0, show: Callable[[str], None] = print) -> Counter[str]:
    """How the cases of one target ended: refused, harmless, SILENT, TRACEBACK or SLOW."""
    found: Counter[str] = Counter()
    slowest, before = 0.0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder = Path(tempfile.mkdtemp(prefix="leeward-fuzz-"))
    try:
        with warnings.catch_warnings(action="ignore"):
            for what, case in TARGETS[name](cases, random.Random(seed), folder):
                began = _worked()
                try:
                    end = case()
                except LeewardError as error:
                    end = "refused" if str(error).strip() and "Traceback" not in str(error) else "TRACEBACK"
                except Exception:  # noqa: BLE001  whatever is not ours is what is looked for
                    end = "TRACEBACK"
                    show(f"{name}: {what}\n{traceback.format_exc(limit=-3)}")
                seconds = _worked() - began
                slowest = max(slowest, seconds)
                found[end if seconds <= _SECONDS else "SLOW"] += 1
                if end == "SILENT":
                    show(f"{name}: {what}: passed, and is not what was written")
    finally:
        shutil.rmtree(folder)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found["MEMORY"] += more > _MEMORY
    counts = ", ".join(f"{count} {end}" for end, count in found.items() if count)
    total = sum(found.values()) - found["MEMORY"]
    show(f"{name}: {total} cases: {counts}; slowest {slowest:.2f} s, {more / 1024:.0f} MB more")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=[], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument(
        "--cases", type=int, default=1000, help="of each target; of run_files for each file 600 or fewer"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bad = 0
    for name in options.targets or TARGETS:
        cases = min(options.cases, {"run_files": 600, "commands": 20}.get(name, options.cases))
        found = run_target(name, cases, options.seed)
        bad += found["SILENT"] + found["TRACEBACK"] + found["SLOW"] + found["MEMORY"]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
