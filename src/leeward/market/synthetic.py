"""Seeded synthetic markets: one that looks like a market, and one whose best policy is known."""

import math

import numpy as np

from leeward.errors import ArgumentError
from leeward.market.bars import Bars, FloatArray

__all__ = ["CONTROL_R2", "control", "synthetic"]

CONTROL_R2 = 0.015  # share of the variance of a bar's log-return that the control market's signal explains
_CONTROL_BARS, _CONTROL_PERSISTENCE, _CONTROL_STD = 20_000, 0.9, 0.01
_SYNTHETIC_BARS = 5_000

# Daily GARCH(1, 1) with Student-t innovations; (drift, volatility factor) per regime, and the chance to leave it.
_OMEGA_SHARE, _ALPHA, _BETA, _FREEDOM, _DAILY_STD = 0.03, 0.08, 0.89, 5.0, 0.01
_REGIMES = ((0.0006, 0.8), (-0.0010, 1.7))
_LEAVE = (0.01, 0.03)


def synthetic(seed: int = 0, n_bars: int | None = None) -> Bars:
    """A GARCH(1, 1)-t market with a calm, rising and a turbulent, falling regime; daily bars, weekdays only.

    σ²_t = ω + α ε²_{t−1} + β σ²_{t−1},  r_t = drift(regime) + factor(regime) ε_t
    ε_t = σ_t z_t,  z_t ~ Student t with 5 degrees of freedom, scaled to variance 1.
    """
    n = _length(n_bars, _SYNTHETIC_BARS)
    rng = np.random.default_rng([seed, 1])
    shocks = rng.standard_t(_FREEDOM, n) * math.sqrt((_FREEDOM - 2.0) / _FREEDOM)
    switches = rng.random(n)
    returns, volatility = np.empty(n), np.empty(n)
    regime, variance = 0, _DAILY_STD**2
    for t in range(n):
        if switches[t] < _LEAVE[regime]:
            regime = 1 - regime
        drift, factor = _REGIMES[regime]
        shock = math.sqrt(variance) * float(shocks[t])
        returns[t], volatility[t] = drift + factor * shock, factor * math.sqrt(variance)
        variance = _OMEGA_SHARE * _DAILY_STD**2 + _ALPHA * shock * shock + _BETA * variance
    # A third of the night's variance falls between close and open.
    gaps = math.sqrt(0.2) * volatility * rng.standard_normal(n)
    closes = 100.0 * np.exp(np.cumsum(returns))
    opens = np.concatenate(([100.0], closes[:-1])) * np.exp(gaps)
    turnover = np.exp(rng.normal(16.0, 0.25, n)) * volatility / _DAILY_STD
    time = np.busday_offset("2000-01-03", np.arange(n), roll="forward").astype("datetime64[ns]")
    return _bars(time, opens, closes, volatility, turnover, {}, "sample:synthetic", rng)


def control(seed: int = 0, n_bars: int | None = None) -> Bars:
    """A market with a planted signal: the return from this close to the next is β·signal + noise, R² = 1.5 %.

    signal_t = φ signal_{t−1} + sqrt(1 − φ²) η_t  (variance 1, φ = 0.9)
    ln(C_{t+1} / C_t) = s (sqrt(R²) signal_t + sqrt(1 − R²) ε_t),  s = 1 % per bar, open_{t+1} = C_t, 4-hour bars.

    The signal is the column feature_signal. Costs aside, growth is highest at the Kelly weight, which is linear in
    the signal; under a limit on the weight the best policy is clip(a + b·signal): `leeward.env.best_clipped_linear`.
    """
    n = _length(n_bars, _CONTROL_BARS)
    rng = np.random.default_rng([seed, 2])
    news, noise = rng.standard_normal(n), rng.standard_normal(n)
    signal = np.empty(n)
    signal[0] = news[0]
    spread = math.sqrt(1.0 - _CONTROL_PERSISTENCE**2)
    for t in range(1, n):
        signal[t] = _CONTROL_PERSISTENCE * signal[t - 1] + spread * news[t]
    returns = np.zeros(n)
    returns[1:] = _CONTROL_STD * (math.sqrt(CONTROL_R2) * signal[:-1] + math.sqrt(1.0 - CONTROL_R2) * noise[1:])
    closes = 100.0 * np.exp(np.cumsum(returns))
    opens = np.concatenate(([100.0], closes[:-1]))
    time = np.datetime64("2010-01-01T00:00:00", "ns") + np.arange(n) * np.timedelta64(4, "h")
    volume = np.exp(rng.normal(18.5, 0.2, n))
    return _bars(
        time, opens, closes, np.full(n, _CONTROL_STD), volume, {"feature_signal": signal}, "sample:control", rng
    )


def _length(n_bars: int | None, usual: int) -> int:
    n = usual if n_bars is None else n_bars
    if n < 2:
        raise ArgumentError(f"n_bars of a synthetic market must be at least 2, got {n}")
    return n


def _bars(
    time: "np.ndarray[tuple[int], np.dtype[np.datetime64]]",
    opens: FloatArray,
    closes: FloatArray,
    volatility: FloatArray,
    volume: FloatArray,
    extra: dict[str, FloatArray],
    source: str,
    rng: np.random.Generator,
) -> Bars:
    """High and low reach beyond open and close by half-normal amounts in proportion to the volatility."""
    reach = np.abs(rng.standard_normal((2, len(opens)))) * volatility * 0.4
    highs = np.maximum(opens, closes) * np.exp(reach[0])
    lows = np.minimum(opens, closes) * np.exp(-reach[1])
    own = {name: np.ascontiguousarray(column[:, None]) for name, column in extra.items()}
    return Bars(
        time=time.astype("datetime64[ns]"),
        assets=(source.removeprefix("sample:"),),
        open=opens[:, None],
        high=highs[:, None],
        low=lows[:, None],
        close=closes[:, None],
        volume=volume[:, None],
        extra=own,
        source=source,
    )
