"""Is the best action found? Every action space, input, policy and critic, on a task whose answer is known.

    python benchmarks/learning/cue_tasks.py            all twelve rows, about two minutes on one core
    python benchmarks/learning/cue_tasks.py 3 7        rows 3 and 7

The tasks are those of `tests/support/cue_tasks.py`; one set of hyper-parameters serves them all.
"""

import argparse
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.support.cue_tasks import ROWS, finds_the_optimum, missing_pairs
from tests.support.cue_training import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="*", help="numbers of rows; none = all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    assert not missing_pairs()
    print("| row | action | input | memory | critic | optimum found | seconds |\n|---|---|---|---|---|---|---|")
    for number in arguments.rows or range(len(ROWS)):
        begin = time.perf_counter()
        found = finds_the_optimum(train(ROWS[number], arguments.seed), ROWS[number])
        seconds = time.perf_counter() - begin
        print(f"| {number} | {' | '.join(ROWS[number])} | {'yes' if found else 'NO'} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
