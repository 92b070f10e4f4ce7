"""What a result is worth: its tail against what it foretold and against its limit, out of sample, and after costs."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from leeward.algorithm.ppo import DistributionalPPO
from leeward.audit.checks import CannotRun
from leeward.audit.findings import Fault
from leeward.backtest import BacktestResult
from leeward.backtest.files import StoredBacktest
from leeward.backtest.strategies import AGENT, BUY_AND_HOLD
from leeward.backtest.wording import number, percent, share
from leeward.config.run import RunConfig

__all__ = ["carries_over", "costs_are_bearable", "is_not_holding", "limit_is_kept", "tail_is_foretold"]

Floats = NDArray[np.float64]
Judged = tuple[str, StoredBacktest]

_LUCK = 0.01  # probability below which a calibrated forecast does not look so
_ERRORS = 2.0  # standard errors of a difference of Sharpe ratios
_ALIKE, _STEADY = 0.98, 0.05  # correlation with holding; standard deviation of the exposure
_HALF = 0.5


def tail_is_foretold(judged: Judged) -> Iterator[Fault]:
    """Losses beyond the predicted VaR come as often as alpha says: counted here, and by Kupiec's test."""
    split, stored = judged
    outlook, alpha = stored.outlook_step, stored.metrics.alpha
    if outlook is None:
        raise CannotRun(f"the backtest on {split} holds no outlook one bar ahead")
    outcomes: Floats = stored.equity["step_return"].to_numpy()[1:]
    n, breaches = len(outcomes), int((outcomes <= outlook.var).sum())
    told = stored.metrics.calibration
    if told is not None and told.breaches != breaches:
        yield Fault(
            "high",
            "The calibration in metrics.json is not of these series",
            f"It counts {told.breaches} losses beyond VaR on {split}; outlook.npz and equity.csv hold {breaches}.",
            f"Run `leeward backtest --split {split}` again.",
        )
    rate = breaches / n
    probable = float(stats.binom.cdf(breaches, n, alpha)), float(stats.binom.sf(breaches - 1, n, alpha))
    if min(probable) >= _LUCK / 2.0:
        return
    milder = rate < alpha
    yield Fault(
        "medium" if milder else "high",
        "The tail is milder than foretold" if milder else "The tail is worse than foretold",
        f"On {split} {breaches} of {n} bars fell below the predicted VaR at {share(alpha)}, {percent(rate, 1)} of them "
        f"(by chance with probability {min(probable):.2g}).",
        "Its VaR is too wide to size a position by; train longer."
        if milder
        else "Do not size a position by its VaR. Train longer, use more n_quantiles, or look whether the market of the "
        "split is another one.",
    )


def carries_over(judged: Judged, shown: dict[str, BacktestResult], config: RunConfig) -> Iterator[Fault]:
    """The Sharpe ratio of bars that were learned from against that of bars that were not."""
    split, stored = judged
    if split == "train":
        raise CannotRun("only train was backtested; run `leeward backtest` on validation")
    year = stored.metrics.bars_per_year
    inside = shown["train"].performance(config.risk[0].alpha).sharpe
    outside = float(stored.metrics.strategies[AGENT].performance["sharpe"])
    years = len(shown["train"].step_returns) / year, stored.metrics.bars / year
    # Lo 2002, eq. 9: the variance of an annualised ratio is (1 + S²/2 per bar) over the years.
    error = float(np.sqrt(sum((1.0 + 0.5 * s * s / year) / y for s, y in zip((inside, outside), years, strict=True))))
    if not (np.isfinite(inside) and np.isfinite(outside)):
        raise CannotRun("an account that never moves has no Sharpe ratio")
    if inside - outside > _ERRORS * error:
        yield Fault(
            "high" if outside <= 0.0 else "medium",
            "What was learned on train does not carry over",
            f"Sharpe ratio {number(inside)} on train and {number(outside)} on {split}: "
            f"{number((inside - outside) / error, 1)} "
            "standard errors apart, so the agent has learned its train bars by heart.",
            "Train for fewer steps, with a smaller network, fewer features or more bars.",
        )


def costs_are_bearable(judged: Judged, config: RunConfig) -> Iterator[Fault]:
    """Costs beside the profit before them; and that there are some."""
    split, stored = judged
    costs, activity = config.env.costs, stored.metrics.strategies[AGENT].activity
    charged = (costs.commission_bps, costs.half_spread_bps, costs.fixed_fee, costs.per_unit, costs.min_commission)
    if not any(charged) and not costs.commission_tiers and not costs.assets:
        yield Fault(
            "high",
            "The backtest charges nothing for trading",
            "Commission, half-spread and fees are all 0, so that every small move looks like profit.",
            "Set env.costs to what your broker and the spread of the market cost, and train again.",
        )
    paid, part = activity["costs_total"], activity["costs_of_gross_profit"]
    if paid > 0.0 and np.isfinite(part) and part >= _HALF:
        yield Fault(
            "high" if part >= 1.0 else "medium",
            "Costs eat the profit",
            f"On {split} costs of {paid:,.0f} took {percent(part, 0)} of the profit before them; it turns its account "
            "over "
            f"{number(activity['turnover_per_year'], 1)} times a year.",
            "Set env.account.rebalance_band, raise ppo.gamma so that it looks further ahead, or trade slower bars.",
        )
    elif paid > 0.0 and not np.isfinite(part):
        yield Fault(
            "medium",
            "There is no profit before costs",
            f"On {split} it lost before it had paid {paid:,.0f} of costs.",
            "Look at the verdict on its edge; there is none to pay costs from.",
        )


def is_not_holding(judged: Judged) -> Iterator[Fault]:
    """An agent whose returns are those of a constant position is buy and hold, whatever it cost to train."""
    split, stored = judged
    if BUY_AND_HOLD not in stored.equity:
        raise CannotRun(f"the backtest on {split} has no buy and hold beside the agent")
    exposure: Floats = stored.equity["exposure"].to_numpy()[1:]
    mean, spread = float(exposure.mean()), float(exposure.std())
    if mean < 1e-3:
        yield Fault(
            "medium",
            "The agent stays in cash",
            f"On {split} its exposure is {percent(mean)} of its equity on average.",
            "The limit may be too tight for any position, or costs too high for every one: look at risk/multiplier.",
        )
        return
    alike = float(np.corrcoef(stored.returns(AGENT), stored.returns(BUY_AND_HOLD))[0, 1])
    if alike > _ALIKE and spread < _STEADY:
        yield Fault(
            "medium",
            "The agent is buy and hold in disguise",
            f"On {split} its returns correlate {number(alike, 3)} with holding, at an exposure of {percent(mean, 0)} "
            "that "
            f"hardly moves (standard deviation {percent(spread, 1)}).",
            "It has found nothing to time. Holding that share of the market costs nothing to train.",
        )


def limit_is_kept(judged: Judged, model: DistributionalPPO) -> Iterator[Fault]:
    """The measured tail against its limit: broken, kept, or much of it unused; and where the multiplier stands."""
    split, stored = judged
    limit, agent = stored.metrics.limit, stored.metrics.strategies[AGENT]
    if limit is None:
        raise CannotRun("no limit is set (risk.limit)")
    tail, interval = float(agent.performance["cvar"]), agent.intervals["cvar"]
    measured = (
        f"On {split} the worst {share(stored.metrics.alpha)} of bars averaged {percent(tail)} (90 % interval "
        f"{percent(interval.low)} to {percent(interval.high)}), the limit is {percent(limit)}"
    )
    if interval.high < limit:
        yield Fault(
            "high",
            "The limit is broken",
            f"{measured}.",
            "Train longer, raise risk.learning_rate, or set a tighter limit.",
        )
    elif tail < limit:
        yield Fault(
            "low",
            "The tail lies beyond its limit, within what chance can do",
            f"{measured}.",
            "Set the limit a little tighter than what you can bear, or raise risk.margin.",
        )
    elif interval.low > _HALF * limit:
        yield Fault(
            "low",
            "Half of the risk budget is unused",
            f"{measured}.",
            "If it should earn more, allow larger positions, or look whether the limit on train is what binds.",
        )
    control = model.engine.risk_control
    for k, each in enumerate(control.constraints if control is not None else ()):
        if each.config.limit is not None and each.multiplier >= each.config.ceiling:
            yield Fault(
                "high",
                "The multiplier is at its ceiling",
                f"Limit {k + 1}: λ is {each.multiplier:g}, its ceiling, and the mildest tail measured was "
                f"{each.best:.4g} "
                f"where {each.config.limit:g} is wanted: the return is nearly ignored, and still it is not met.",
                "Perhaps no policy can keep this limit: set one that a smaller position can.",
            )
