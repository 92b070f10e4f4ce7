"""Causal features: the value at bar t depends on that asset's bars t − look_back … t, and on nothing else.

Each feature declares its look-back; windows are exact (moving averages are truncated), so a bar further back cannot
change a value even in its last digit. Where the look-back reaches before the first bar, or a bar or the volume is
missing, the value is NaN: never a silent zero. Later stages turn NaN into a validity flag.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from leeward.errors import ConfigError, did_you_mean
from leeward.market.bars import Bars, FloatArray
from leeward.market.column_names import USER_FEATURE
from leeward.market.rolling import rolling_max, rolling_mean, rolling_std, weighted

__all__ = ["FEATURES", "Feature", "Series", "chosen_features", "compute_feature", "is_attackable", "longest_look_back"]


@dataclass(frozen=True)
class Series:
    """The bars of one asset, without the times at which it has none."""

    seconds: FloatArray  # (m,) since 1970
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray


@dataclass(frozen=True)
class Feature:
    """A named function of one asset's bars; `look_back` counts the bars before t it reads."""

    name: str
    look_back: int
    compute: Callable[[Series], FloatArray]
    needs_volume: bool = False
    attackable: bool = True  # False: a fact an adversary cannot move, like the day of the week


def _lagged(values: FloatArray, lag: int) -> FloatArray:
    out = np.full(len(values), np.nan)
    out[lag:] = values[: len(values) - lag]
    return out


def _log_return(s: Series, *, bars: int) -> FloatArray:
    return np.log(s.close / _lagged(s.close, bars))


def _gap(s: Series) -> FloatArray:
    return np.log(s.open / _lagged(s.close, 1))


def _intraday(s: Series) -> FloatArray:
    return np.log(s.close / s.open)


def _volatility(s: Series, *, bars: int) -> FloatArray:
    """Realised: ln of the sample standard deviation of the last `bars` log-returns."""
    return _log(rolling_std(_log_return(s, bars=1), bars))


def _parkinson(s: Series, *, bars: int) -> FloatArray:
    """ln σ, σ² = mean(ln(H/L)²) / (4 ln 2). Parkinson 1980."""
    return _log(np.sqrt(rolling_mean(np.log(s.high / s.low) ** 2, bars) / (4.0 * math.log(2.0))))


def _yang_zhang(s: Series, *, bars: int) -> FloatArray:
    """ln σ, σ² = var(gap) + k var(intraday) + (1 − k) mean(Rogers-Satchell). Yang and Zhang 2000."""
    k = 0.34 / (1.34 + (bars + 1) / (bars - 1))
    up, down, body = np.log(s.high / s.open), np.log(s.low / s.open), _intraday(s)
    rogers_satchell = rolling_mean(up * (up - body) + down * (down - body), bars)
    overnight, daytime = rolling_std(_gap(s), bars) ** 2, rolling_std(body, bars) ** 2
    return _log(np.sqrt(overnight + k * daytime + (1.0 - k) * rogers_satchell))


def _log(sigma: FloatArray) -> FloatArray:
    """ln σ, since volatility is nearly log-normal; σ = 0 (no movement at all) has no logarithm and is invalid."""
    return np.log(np.where(sigma > 0.0, sigma, np.nan))


def _momentum(s: Series, *, bars: int, skip: int) -> FloatArray:
    """ln(C_{t−skip} / C_{t−bars}) over the volatility of the window: the newest bars tend to revert and are skipped."""
    spread = rolling_std(_log_return(s, bars=1), bars) * math.sqrt(bars - skip)
    move = np.log(_lagged(s.close, skip) / _lagged(s.close, bars))
    return np.where(spread > 0.0, move / np.where(spread > 0.0, spread, 1.0), np.nan)


def _rsi(s: Series, *, bars: int) -> FloatArray:
    """Relative strength in [−1, 1] with plain averages (Cutler's form): Wilder's smoothing never forgets."""
    change = np.diff(s.close, prepend=np.nan)
    gain, loss = rolling_mean(np.maximum(change, 0.0), bars), rolling_mean(np.maximum(-change, 0.0), bars)
    moved = gain + loss
    return np.where(moved > 0.0, (gain - loss) / np.where(moved > 0.0, moved, 1.0), np.where(moved == 0.0, 0.0, np.nan))


def _macd(s: Series, *, fast: int, slow: int, bars: int) -> FloatArray:
    """Difference of two exponential averages of ln C, each truncated to `bars` bars and its weights renormalised."""
    logs = np.log(s.close)
    return weighted(logs, _decay(fast, bars)) - weighted(logs, _decay(slow, bars))


def _decay(span: int, bars: int) -> FloatArray:
    weights = (1.0 - 2.0 / (span + 1.0)) ** np.arange(bars)
    return np.asarray(weights / weights.sum())


def _drawdown(s: Series, *, bars: int) -> FloatArray:
    return np.log(s.close / rolling_max(s.close, bars))


def _volume_z(s: Series, *, bars: int) -> FloatArray:
    logs = np.log1p(s.volume)
    spread = rolling_std(logs, bars)
    return np.where(spread > 0.0, (logs - rolling_mean(logs, bars)) / np.where(spread > 0.0, spread, 1.0), np.nan)


def _calendar(s: Series, *, days: float, wave: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Phase of the week or the day, as a sine or cosine; 1970-01-01 was a Thursday, which does not matter here."""
    return wave(2.0 * math.pi * (s.seconds / 86_400.0 % days) / days)


FEATURES: dict[str, Feature] = {
    feature.name: feature
    for feature in (
        *(Feature(f"return_{bars}", bars, partial(_log_return, bars=bars)) for bars in (1, 5, 20, 60)),
        Feature("gap", 1, _gap),
        Feature("intraday", 0, _intraday),
        Feature("volatility_20", 20, partial(_volatility, bars=20)),
        Feature("parkinson_20", 19, partial(_parkinson, bars=20)),
        Feature("yang_zhang_20", 20, partial(_yang_zhang, bars=20)),
        Feature("momentum_60_5", 60, partial(_momentum, bars=60, skip=5)),
        Feature("rsi_14", 14, partial(_rsi, bars=14)),
        Feature("macd_12_26", 77, partial(_macd, fast=12, slow=26, bars=78)),
        Feature("drawdown_60", 59, partial(_drawdown, bars=60)),
        Feature("volume_z_20", 19, partial(_volume_z, bars=20), needs_volume=True),
        Feature("week_sin", 0, partial(_calendar, days=7.0, wave=np.sin), attackable=False),
        Feature("week_cos", 0, partial(_calendar, days=7.0, wave=np.cos), attackable=False),
        Feature("day_sin", 0, partial(_calendar, days=1.0, wave=np.sin), attackable=False),
        Feature("day_cos", 0, partial(_calendar, days=1.0, wave=np.cos), attackable=False),
    )
}


def chosen_features(bars: Bars, names: Sequence[str] | None) -> tuple[str, ...]:
    """The asked-for features, or every one these bars support, then the user's own feature_* columns.

    Volume features need a volume; the phase of the day says nothing about daily bars, so they are left out there.
    """
    if names is None:
        has_volume = bool(np.isfinite(bars.volume).any())
        of_day = bars.time.astype("datetime64[s]").astype(np.int64) % 86_400
        intraday = bool((of_day != of_day[:1]).any())
        names = [
            name
            for name, feature in FEATURES.items()
            if (has_volume or not feature.needs_volume) and (intraday or not name.startswith("day_"))
        ]
    known = {*FEATURES, *bars.extra}
    for name in names:
        if name not in known:
            raise ConfigError(f"data.features: unknown feature {name!r}; {did_you_mean(name, known)}")
    return tuple(dict.fromkeys((*names, *bars.extra)))


def longest_look_back(names: Sequence[str]) -> int:
    """Bars; a user's own column is taken at its word and counts as 0."""
    return max((FEATURES[name].look_back for name in names if name in FEATURES), default=0)


def is_attackable(name: str) -> bool:
    return name.startswith(USER_FEATURE) or FEATURES[name].attackable


def compute_feature(bars: Bars, name: str) -> FloatArray:
    """Raw values (n, A), NaN where they are not valid."""
    if name in bars.extra:
        return np.where(bars.present & np.isfinite(bars.extra[name]), bars.extra[name], np.nan)
    out = np.full((len(bars), len(bars.assets)), np.nan)
    seconds = np.asarray(bars.time.astype(np.int64) * 1e-9, dtype=np.float64)
    for asset in range(len(bars.assets)):
        here = bars.present[:, asset]
        columns = (bars.open, bars.high, bars.low, bars.close, bars.volume)
        series = Series(seconds[here], *(np.ascontiguousarray(column[here, asset]) for column in columns))
        out[here, asset] = FEATURES[name].compute(series)
    return out
