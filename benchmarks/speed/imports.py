"""How long does it take to import, and what comes along? Fresh interpreters, in turns.

    python benchmarks/speed/imports.py [--rounds 7] [--write]

Wall time less that of an interpreter which imports nothing; medians of the rounds after one that fills the file cache.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

HEAVY = ("torch", "stable_baselines3", "numba", "pandas")
STATEMENTS = {
    "nothing": "pass",
    "import leeward, look up its env id": "import leeward, gymnasium; gymnasium.spec('leeward/Trading-v0')",
    "import leeward.env": "import leeward.env",
    "import leeward.market": "import leeward.market",
    "from leeward import DistributionalPPO": "from leeward import DistributionalPPO",
    "import stable_baselines3": "import stable_baselines3",
}
COMMAND = "leeward --help"


def seconds(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def brought(statement: str) -> str:
    """The heavy packages in `sys.modules` afterwards."""
    script = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return ", ".join(done.stdout.split()) or "none of them"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="store the table beside this script")
    arguments = parser.parse_args()
    commands = {name: [sys.executable, "-c", statement] for name, statement in STATEMENTS.items()}
    commands[COMMAND] = [str(pathlib.Path(sys.executable).with_name("leeward")), "--help"]
    load, found = os.getloadavg()[0], {name: list[float]() for name in commands}
    for _ in range(arguments.rounds + 1):
        for name, command in commands.items():
            found[name].append(seconds(command))
    medians = {name: statistics.median(each[1:]) for name, each in found.items()}
    start = medians["nothing"]
    reference = medians["import stable_baselines3"] - start
    lines = [
        "# Import time",
        "",
        f"`python benchmarks/speed/imports.py --write`: wall time above the {start:.2f} s that an interpreter takes, "
        f"medians of {arguments.rounds} rounds in turns; load average before: {load:.1f}.",
        "",
        f"| what | seconds | × stable_baselines3 | of {', '.join(HEAVY)} |",
        "|---|---|---|---|",
    ]
    for name, median in medians.items():
        if name == "nothing":
            continue
        own, along = median - start, brought(STATEMENTS[name]) if name in STATEMENTS else "–"
        lines.append(f"| `{name}` | {own:.2f} | {own / reference:.2f} | {along} |")
    text = "\n".join([*lines, ""])
    print(text)
    if arguments.write:
        pathlib.Path(__file__).with_name("RESULTS_imports.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
