"""What is lost when a driver or a member is killed? A population is killed again and again and resumed each time.

    tools/alone.sh .venv/bin/python benchmarks/population/kills.py --write

Ten times the driver is killed with SIGKILL, at a random moment after its start, five times a process that trains a
member. The log must then tell, but for the clock and the crashes, what it tells of a population that nobody disturbed:
the same orders, scores and settings of every member, and the same best.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.populations import TRADING, carry_on, config_of

from leeward.config.load import dump_config
from leeward.training.checkpoints import read_files
from leeward.training.population.log import read_events
from leeward.training.population.population import Population

PAGE = Path(__file__).parent / "RESULTS_kills.md"
MEMBERS, DRIVERS, PLACES = 3, 10, 5
MORE = ("tune.interval=640", "ppo.total_steps=64000", "ppo.n_epochs=4")  # longer than all kills take
CLOCK = ("seconds", "training_seconds")


def without_clock(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_clock(each) for key, each in value.items() if key not in CLOCK}
    return [without_clock(each) for each in value] if isinstance(value, list) else value


def story(folder: Path) -> list[object]:
    events = [
        event for event in read_events(folder / "population.jsonl") if event["event"] not in ("crashed", "finished")
    ]
    return sorted(json.dumps(without_clock(event), sort_keys=True) for event in events)


def places_of(driver: int) -> list[int]:
    """Processes of Ray's that train members for this driver: they descend from it."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, _ in rows}

    def descends(pid: int) -> bool:
        while pid in parents and pid != driver:
            pid = parents[pid]
        return pid == driver

    return [int(pid) for pid, _, words in rows if words.startswith("ray::_Place") and descends(int(pid))]


def disturbed(folder: Path, config: Path, rng: random.Random) -> dict[str, int]:
    command = [sys.executable, "-c", "import leeward.cli; leeward.cli.main()", "tune", str(config),
               "--members", str(MEMBERS), "--run-dir", str(folder)]  # fmt: skip
    found = {"drivers killed": 0, "members killed": 0}
    while True:
        known = ["--resume"] if (folder / "population.jsonl").is_file() else []
        driver = subprocess.Popen([*command, *known], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        due = time.monotonic() + rng.uniform(3.0, 30.0)
        while driver.poll() is None:
            time.sleep(0.2)
            if time.monotonic() < due:
                continue
            places = places_of(driver.pid)
            if found["members killed"] < PLACES and places and rng.random() < 0.5:
                os.kill(rng.choice(places), signal.SIGKILL)
                found["members killed"] += 1
                due = time.monotonic() + rng.uniform(3.0, 20.0)
            elif found["drivers killed"] < DRIVERS:
                driver.kill()
                driver.wait()  # it dies once, however long it takes to
                found["drivers killed"] += 1
        _, errors = driver.communicate()
        if driver.returncode == 0:
            if (found["drivers killed"], found["members killed"]) != (DRIVERS, PLACES):
                raise SystemExit(f"the population ended before all were killed: {found}; raise ppo.total_steps")
            return found
        if driver.returncode != -signal.SIGKILL:
            raise SystemExit(f"the driver ended with {driver.returncode}: {errors[-2000:]}")
        print(found, len(read_events(folder / "population.jsonl")), "events", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="the page")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, config = Path(name), config_of(TRADING, *MORE)
        (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        found = disturbed(folder / "killed", folder / "config.yaml", random.Random(options.seed))
        whole = Population.create(folder / "whole", config, MEMBERS, "population")
        while whole.pending:
            carry_on(whole)
        killed = Population.open(folder / "killed")
        read_files(folder / "killed" / "best" / "best")
        row = found | {
            "finished": int(killed.is_finished),
            "events": len(story(folder / "whole")),
            "events that differ": len(set(story(folder / "killed")) ^ set(story(folder / "whole"))),
            "best is the same": int(killed.best == whole.best),
        }
    print(row)
    if options.write:
        lines = [
            "# What is lost when a driver or a member is killed?",
            "",
            "Written by `benchmarks/population/kills.py --write`: one population on a market, real Ray, SIGKILL at",
            "random moments, compared with the same population carried out undisturbed in one process.",
            "",
            f"| {' | '.join(row)} |",
            f"|{'---|' * len(row)}",
            f"| {' | '.join(str(value) for value in row.values())} |",
        ]
        PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
