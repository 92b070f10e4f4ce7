"""A hand-written rule through Leeward's env and costs, with a tear sheet: no learning at all.

    python examples/moving_average.py [--bars bars.csv] [--out tear_sheet.html]

The rule holds the market while its close is above its mean of 100 bars. It is written twice: as a table of weights, and
as a policy that is asked bar by bar.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from leeward.market import load, prepare
from leeward.report import tear_sheet

WINDOW = 100


class MovingAverage:
    """Asked at every close; `time` says which bar it has seen, and it looks at nothing after it."""

    def __init__(self, closes: "pd.Series[float]") -> None:
        self.closes, self.means = closes, closes.rolling(WINDOW).mean()

    def predict(self, observation, state=None, episode_start=None, deterministic=True, *, time):
        return np.array([[float(self.closes[time] > self.means[time])]]), state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bars", default="sample:nasdaq")
    parser.add_argument("--out", type=Path, default=Path("tear_sheet.html"))
    parser.add_argument("--unseen-from", default="2005-01-01", help="the day from which on the rule was not fitted")
    parser.add_argument("--draws", type=int, default=2_000)
    options = parser.parse_args()

    bars = load(options.bars)
    closes = pd.Series(bars.close[:, 0], index=pd.DatetimeIndex(bars.time))
    market = prepare(bars=bars)

    weights = (closes > closes.rolling(WINDOW).mean()).astype(float).to_frame(bars.assets[0])
    settings = {"name": "moving average", "n_draws": options.draws, "n_offsets": options.draws}
    # Nobody but you knows on which bars a rule was found: an edge is judged only from the day you name.
    print(f"weights: {tear_sheet(weights, market, path=options.out, unseen_from=options.unseen_from, **settings)}")
    policy = options.out.with_stem(options.out.stem + "_policy")
    print(f"policy:  {tear_sheet(MovingAverage(closes), market, path=policy, **settings)}")


if __name__ == "__main__":
    main()
