"""The same bars are recognised whatever they come in; other bars never are."""

import numpy as np
import pandas as pd
import pytest

from leeward.config.trading import DataConfig
from leeward.market import from_frame, load
from leeward.market.tape import Tape, same_bars

N, TEST_FROM = 300, 240
TIME = pd.bdate_range("2023-01-02", periods=N)


def frame(seed, *, zero=0.0):
    """Daily bars of one asset; a share `zero` of the days does not move."""
    rng = np.random.default_rng(seed)
    moves = 0.01 * rng.standard_normal(N) * (rng.random(N) >= zero)
    close = 50.0 * np.exp(np.cumsum(moves))
    columns = {"open": close, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": rng.random(N) * 1e6}
    return pd.DataFrame(columns, index=pd.DatetimeIndex(TIME, name="date"))


def panel(**assets):
    return pd.concat([part.assign(asset=name).reset_index() for name, part in assets.items()])


MINE = frame(1)
SEALED = Tape.of(from_frame(MINE)).part(TEST_FROM)


def as_csv(bars, folder):
    bars.to_csv(folder / "x.csv")
    return load(folder / "x.csv")


def as_parquet(bars, folder):
    bars.to_parquet(folder / "y.parquet")
    return load(folder / "y.parquet")


def as_directory(bars, folder):
    (folder / "d").mkdir()
    bars.to_csv(folder / "d" / "OTHER.csv")
    return load(folder / "d")


def in_tokyo(bars, folder):
    return from_frame(bars, DataConfig(time_zone="Asia/Tokyo"))


SAME = {
    "a frame": lambda bars, folder: from_frame(bars),
    "a CSV": as_csv,
    "a Parquet file": as_parquet,
    "a directory": as_directory,
    "without its first row": lambda bars, folder: from_frame(bars.iloc[1:]),
    "without a row of the window": lambda bars, folder: from_frame(bars.drop(bars.index[260])),
    "without every fifth row": lambda bars, folder: from_frame(bars[np.arange(N) % 5 != 0]),
    "with a row more": lambda bars, folder: from_frame(
        pd.concat([bars, bars.iloc[-1:].set_axis(pd.DatetimeIndex([TIME[-1] + pd.Timedelta(days=3)]))])
    ),
    "the window alone": lambda bars, folder: from_frame(bars.iloc[TEST_FROM:]),
    "a part of the window": lambda bars, folder: from_frame(bars.iloc[-20:]),
    "another volume": lambda bars, folder: from_frame(bars.assign(volume=7.0)),
    "prices scaled": lambda bars, folder: from_frame(bars.assign(**0.37 * bars[["open", "high", "low", "close"]])),
    "prices rounded": lambda bars, folder: from_frame(bars.round(3)),
    "another zone": in_tokyo,
    "among other assets": lambda bars, folder: from_frame(panel(B=frame(7), A=bars, C=frame(8))),
}


@pytest.mark.parametrize("form", SAME)
def test_the_same_bars_are_recognised_in_any_form(form, tmp_path):
    assert same_bars(SEALED, Tape.of(SAME[form](MINE, tmp_path)))


@pytest.mark.parametrize("seed", range(2, 12))
def test_other_bars_of_the_same_days_are_not(seed):
    assert not same_bars(SEALED, Tape.of(from_frame(frame(seed))))


def test_bars_of_other_days_and_a_few_common_ones_are_not():
    assert not same_bars(SEALED, Tape.of(from_frame(MINE.iloc[:TEST_FROM])))
    assert not same_bars(SEALED, Tape.of(from_frame(MINE.iloc[: TEST_FROM + 4])))


def test_two_assets_that_seldom_move_are_not_the_same_for_that():
    mine, other = (Tape.of(from_frame(frame(seed, zero=0.95))) for seed in (1, 2))
    assert not same_bars(mine, other)


def test_small_moves_are_compared_by_their_own_size():
    # moves of a fifth of a basis point agree to 1e-4 with any other; to a tenth of their size they do not
    mine, other = (frame(seed) for seed in (1, 2))
    small = [part.assign(close=50.0 * (part["close"] / 50.0) ** 0.002) for part in (mine, other)]
    tapes = [Tape.of(from_frame(part.assign(open=part["close"], high=50.5, low=49.5))) for part in small]
    assert not same_bars(*tapes)
    assert same_bars(tapes[0], tapes[0])
