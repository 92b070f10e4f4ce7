"""What healthy and sick runs look like: `healthy_and_sick.svg`, drawn from runs of the fault gallery.

    OMP_NUM_THREADS=1 python benchmarks/health/pictures.py

Each panel is one metric over sixteen updates: a run with a fault in red, five healthy twins of other seeds in grey. The
dashed line is the update in which the fault is put in, the circle the alert that names it.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.faults import FAULTS, Fault, Story, train

UPDATES, TWINS = 16, 5
# By the name of the fault; the metric is the one that the gallery says it shows in.
SHOWN = (
    "exploding learning rate",
    "actor without gradient",
    "the reward's unit changes by 1e6",
    "advantages of another env",
    "dead critic 2",
    "stale observation",
    "saturated memory",
    "collapsed entropy",
)
COLUMNS, WIDTH, HEIGHT = 2, 420, 170  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 44, 26  # margins inside it
WIDE = 30.0  # largest over smallest number, from which on a panel is logarithmic


@dataclass(frozen=True)
class Scale:
    """From a number to a height in a panel."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Scale":
        positive = [number for number in numbers if number > 0.0]
        if len(positive) > 0.5 * len(numbers) and min(numbers) >= 0.0 and max(positive) > WIDE * min(positive):
            return cls(min(positive), max(positive), True)
        low, high = min(numbers), max(numbers)
        return cls(low, high if high > low else low + 1.0, False)

    def __call__(self, number: float) -> float:
        if self.logarithmic:  # 0 lies at the bottom
            share = math.log(max(number, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (number - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def across(update: int) -> float:
    return LEFT + (update - 1) / (UPDATES - 1) * (WIDTH - LEFT - RIGHT)


def line(story: Story, metric: str, scale: Scale, style: str) -> str:
    points = " ".join(
        f"{across(update):.1f},{scale(row[metric]):.1f}"
        for update, row in enumerate(story.numbers, 1)
        if metric in row and math.isfinite(row[metric])
    )
    return f'<polyline points="{points}" fill="none" {style}/>'


def text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def panel(fault: Fault) -> str:
    metric = fault.shows_in
    sick = train(fault, fault.setup, UPDATES)
    healthy = [train(None, fault.setup, UPDATES, seed=100 + i) for i in range(TWINS)]
    rows = [row for story in (sick, *healthy) for row in story.numbers if metric in row]
    scale = Scale.of([row[metric] for row in rows if math.isfinite(row[metric])])
    alert = next(alert for alert in sick.alerts if alert.name in fault.alerts)
    begin, named = across(fault.at), across(alert.update)
    height = scale(sick.numbers[alert.update - 1][metric])
    left = named > 0.55 * WIDTH
    label = f"{alert.name}, update {alert.update}"
    return "".join(
        [
            text(LEFT, 16, f"Fault: {fault.name}", 'font-weight="bold"'),
            text(LEFT, 31, metric + (", logarithmic" if scale.logarithmic else ""), 'fill="#666"'),
            text(LEFT - 6, scale(scale.high) + 4, f"{scale.high:.3g}", 'text-anchor="end" fill="#666"'),
            text(LEFT - 6, scale(scale.low) + 4, f"{scale.low:.3g}", 'text-anchor="end" fill="#666"'),
            text(LEFT, HEIGHT - 8, "update 1", 'fill="#666"'),
            text(WIDTH - RIGHT, HEIGHT - 8, str(UPDATES), 'text-anchor="end" fill="#666"'),
            f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}" fill="none" '
            'stroke="#ddd"/>',
            f'<line x1="{begin:.1f}" x2="{begin:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#999" '
            'stroke-dasharray="3 3"/>',
            *(line(story, metric, scale, 'stroke="#9aa5b1"') for story in healthy),
            line(sick, metric, scale, 'stroke="#c1121f" stroke-width="2"'),
            f'<circle cx="{named:.1f}" cy="{height:.1f}" r="5" fill="#fff" stroke="#c1121f" stroke-width="2"/>',
            text(
                named + (-9 if left else 9),
                min(max(height + (14 if height < HEIGHT / 2 else -8), TOP + 12), HEIGHT - BOTTOM - 5),
                label,
                f'fill="#c1121f" text-anchor="{"end" if left else "start"}"',
            ),
        ]
    )


def main() -> None:
    torch.set_num_threads(1)
    parts = []
    for number, name in enumerate(SHOWN):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT
        (fault,) = (fault for fault in FAULTS if fault.name == name)
        parts.append(f'<g transform="translate({x} {y})">{panel(fault)}</g>')
    size = f'width="{COLUMNS * WIDTH}" height="{math.ceil(len(SHOWN) / COLUMNS) * HEIGHT}"'
    style = "<style>text { font: 11px sans-serif }</style>"
    drawing = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}<rect {size} fill="#fff"/>{"".join(parts)}</svg>'
    (Path(__file__).with_name("healthy_and_sick.svg")).write_text(f"{drawing}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
