"""Where the time of training goes: a flame graph of Leeward's own functions.

    python benchmarks/speed/flame.py [--rounds 8]      writes flame.svg beside this script

The 64-env workload of run.py on one thread, so that a stack is the whole story. The stack is looked at every
millisecond of CPU time; a look that falls into a long operation is taken when it ends, and counts for the function
that called it. Frames outside Leeward are left out, so what torch does belongs to whoever asked for it.
"""

import argparse
import pathlib
import signal
import sys
from collections import Counter
from html import escape
from types import FrameType

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.speed.run import WORKLOADS, build

import leeward
from leeward import DistributionalPPO

Stack = tuple[str, ...]
SOURCE = str(pathlib.Path(leeward.__file__).parent)
WIDTH, HEIGHT, LEAST = 1100.0, 18, 0.004  # what takes less than 0.4 % is not drawn


class Sampler:
    """Counts stacks of Leeward's functions."""

    def __init__(self) -> None:
        self.stacks: Counter[Stack] = Counter()

    def __enter__(self) -> "Sampler":
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        names: list[str] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(SOURCE):
                names.append(f"{pathlib.Path(code.co_filename).stem}.{code.co_qualname.replace('.<locals>', '')}")
            frame = frame.f_back
        self.stacks[tuple(reversed(names))] += 1


def draw(stacks: Counter[Stack]) -> str:
    """One box for each stack prefix, as wide as its share, callers below; with a title to hover over."""
    total = sum(stacks.values())
    weight: Counter[Stack] = Counter()
    for stack, count in stacks.items():
        for depth in range(1, len(stack) + 1):
            weight[stack[:depth]] += count
    depth = max(map(len, weight))
    parts: list[str] = []

    def place(prefix: Stack, left: float) -> None:
        for child in sorted(w for w in weight if len(w) == len(prefix) + 1 and w[: len(prefix)] == prefix):
            share = weight[child] / total
            if share < LEAST:
                continue
            y, width = (depth - len(child)) * HEIGHT, share * WIDTH
            red = 200 + 7 * (sum(map(ord, child[-1])) % 8)
            module, _, name = child[-1].partition(".")
            forms = (f"{module}.{name}", name, name.rpartition(".")[2])  # the longest that fits, or none
            label = next((form for form in forms if width > 6 * len(form)), "")
            parts.append(
                f"<g><title>{escape(child[-1])}: {share:.1%}</title>"
                f'<rect x="{left:.1f}" y="{y}" width="{width - 0.5:.1f}" '
                f'height="{HEIGHT - 1}" fill="rgb({red},{red - 60},90)"/>'
                f'<text x="{left + 3:.1f}" y="{y + 13}">{escape(label)}</text></g>'
            )
            place(child, left)
            left += width

    place((), 0.0)
    style = "<style>text { font: 11px sans-serif }</style>"
    size = f'width="{WIDTH:.0f}" height="{depth * HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(parts)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    workload = WORKLOADS["64 envs"]
    model, size = build(DistributionalPPO, workload), workload.size
    model.learn(size)
    with Sampler() as sampler:
        model.learn(arguments.rounds * size, reset_num_timesteps=False)
    pathlib.Path(__file__).with_name("flame.svg").write_text(draw(sampler.stacks), encoding="utf-8")
    total = sum(sampler.stacks.values())
    own: Counter[str] = Counter()
    for stack, count in sampler.stacks.items():
        own[stack[-1] if stack else "outside"] += count
    print(f"{total} looks; time of each function itself, with the torch operations it calls:")
    for name, count in own.most_common(20):
        print(f"{count / total:6.1%}  {name}")


if __name__ == "__main__":
    main()
