"""One step of all environments and assets: the accounting of docs/ideas/trading-environment.md, in float64.

Everything is a plain array; the names below say which column holds what. B environments, A assets, n bars, D inputs.

    panel (n, A, 4)   inputs (n, D_market) float32   years (n,)   rates (RATES,)   terms (A, TERMS)
    book (B, BOOK)    held (B, 2, A)    clock (B, CLOCK) int64    ring (B, W): equity of the last W closes
    info (INFO, B)    orders (B, A): signed notional traded in this step

All functions live in this file on purpose: numba's cache looks at the file of the compiled function alone, so a change
in another file would not be seen.
"""

import math

import numba
import numpy as np

# Helpers are compiled into their callers: a call would count references of every array it is given, atomically.
_helper = numba.njit(cache=True, forceinline=True, error_model="numpy")
_entry = numba.njit(cache=True, error_model="numpy")

OPEN, CLOSE, IMPACT, CODE = range(4)
PANEL_COLUMNS = 4
NOT_LISTED, TRADABLE, NO_BAR, DELISTED = 0.0, 1.0, 2.0, 3.0

(COMMISSION_RATE, SPREAD_RATE, FIXED_FEE, IMPACT_COEF, CASH_RATE, DEBIT_RATE, BORROW_RATE) = range(7)
(GROSS_LIMIT, BAND, MAINTENANCE, FLOOR, INITIAL, SHARPE_REWARD, SHARPE_RATE, SHARPE_PRIOR) = range(7, 15)
(NET_LIMIT, TURNOVER_LIMIT) = range(15, 17)
RATES = 17

# What each asset costs and may weigh. `terms` is None where the rates above say it all: numba then compiles a kernel
# without a trace of the longer way, which would halve its speed.
(TAKER, MAKER, HALF_SPREAD, PER_UNIT, PER_ORDER, LEAST, MOST, IMPACT_OF, BORROW_OF, FUNDING) = range(10)
(LOT, LEAST_ORDER, LOWEST, HIGHEST, TIERS_FROM) = range(10, 15)
MOST_TIERS = 4
TIERS_RATE = TIERS_FROM + MOST_TIERS
TERMS = TIERS_RATE + MOST_TIERS

CASH, EQUITY, PEAK, EPISODE_REWARD, SHARPE_MEAN, SHARPE_SQUARE = range(6)
BOOK = 6
UNITS, ENTRY = range(2)
BAR, END, TRADE_FROM, EPISODE, LENGTH, ENDED = range(6)
CLOCK = 6

INFO_NAMES = (
    "step_return",
    "reward_costs_fraction",
    "equity",
    "turnover",
    "exposure",
    "net_exposure",
    "pnl",
    "commission",
    "spread",
    "impact",
    "fees",
    "interest_paid",
    "interest_earned",
    "write_off",
    "n_trades",
    "cash",
    "bar",
    "episode_reward",
    "episode_length",
)
(
    STEP_RETURN,
    COSTS_FRACTION,
    EQUITY_NOW,
    TURNOVER,
    EXPOSURE,
    NET_EXPOSURE,
    PNL,
    COMMISSION,
    SPREAD,
    PRICE_IMPACT,
    FEES,
) = range(11)
(INTEREST_PAID, INTEREST_EARNED, WRITE_OFF, N_TRADES, CASH_NOW, BAR_NOW, REWARD_SO_FAR, LENGTH_SO_FAR) = range(11, 19)
INFO = 19

ENTRY_RETURN_LIMIT = 0.5  # ± cut of the return since entry: a position held for years must not leave the trained range


@_helper
def _commission(size, change, terms, a):  # type: ignore[no-untyped-def]
    """Per notional or by tiers, plus per unit, not below the least and not above the most of an order."""
    percentage = terms[a, TAKER] * size
    if terms[a, TIERS_FROM] == 0.0:
        percentage = 0.0
        for i in range(MOST_TIERS):
            start = terms[a, TIERS_FROM + i]
            end = terms[a, TIERS_FROM + i + 1] if i + 1 < MOST_TIERS else math.inf
            if size > start:
                percentage += terms[a, TIERS_RATE + i] * (min(size, end) - start)
    charged = percentage + terms[a, MAKER] * size + terms[a, PER_UNIT] * abs(change)
    return min(max(charged, terms[a, LEAST]), terms[a, MOST] * size)


@_helper
def _fill(units, entry, desired, price, impact, rates, terms, a, info, b):  # type: ignore[no-untyped-def]
    """Trade one asset to `desired` units: returns (cash spent, new entry price, signed notional); books each cost."""
    change = desired - units
    notional = change * price
    size = abs(notional)
    if terms is None:
        commission = rates[COMMISSION_RATE] * size
        spread = rates[SPREAD_RATE] * size
        impact_cost = rates[IMPACT_COEF] * impact * math.sqrt(abs(change)) * size
        fee = rates[FIXED_FEE]
    else:
        commission = _commission(size, change, terms, a)
        spread = terms[a, HALF_SPREAD] * size
        impact_cost = terms[a, IMPACT_OF] * impact * math.sqrt(abs(change)) * size
        fee = terms[a, PER_ORDER]
    info[COMMISSION, b] += commission
    info[SPREAD, b] += spread
    info[PRICE_IMPACT, b] += impact_cost
    info[FEES, b] += fee
    info[N_TRADES, b] += 1.0
    if desired == 0.0 or units * desired < 0.0 or units == 0.0:
        entry = price
    elif abs(desired) > abs(units):  # average cost of what is held; a reduction leaves it
        entry = (abs(units) * entry + abs(change) * price) / abs(desired)
    return notional + commission + spread + impact_cost + fee, entry, notional


@_helper
def _settle(desired, price, impact, rates, terms, book, held, orders, info, a, b):  # type: ignore[no-untyped-def]
    """Hold `desired` units of an asset from now on, with costs; books all of it and returns the notional traded."""
    units = held[b, UNITS, a]
    if desired == units:
        return 0.0
    spent, entry, notional = _fill(units, held[b, ENTRY, a], desired, price, impact, rates, terms, a, info, b)
    book[b, CASH] -= spent
    orders[b, a] += notional
    held[b, UNITS, a] = desired
    held[b, ENTRY, a] = entry
    return abs(notional)


@_helper
def _close_all(t, column, panel, rates, terms, book, held, orders, info, b):  # type: ignore[no-untyped-def]
    """Close everything at open or close of bar t, with costs; returns the notional traded."""
    traded = 0.0
    for a in range(held.shape[2]):
        price, impact = panel[t, a, column], panel[t - 1, a, IMPACT]
        traded += _settle(0.0, price, impact, rates, terms, book, held, orders, info, a, b)
    return traded


@_helper
def _wanted(target, terms, a):  # type: ignore[no-untyped-def]
    """A target weight inside the limits of its asset."""
    return min(max(target, terms[a, LOWEST]), terms[a, HIGHEST])


@_helper
def _bounded(t, equity, targets, panel, rates, terms, held, b):  # type: ignore[no-untyped-def]
    """(scale of longs, scale of shorts, share of each change that is traded): asset, gross, net and turnover limits."""
    longs, shorts = 0.0, 0.0
    for a in range(held.shape[2]):
        code = panel[t + 1, a, CODE]
        if code != NOT_LISTED and code != DELISTED and not math.isnan(targets[b, a]):
            weight = _wanted(targets[b, a], terms, a)
            longs += max(weight, 0.0)
            shorts -= min(weight, 0.0)
    gross = longs + shorts
    scale = rates[GROSS_LIMIT] / gross if gross > rates[GROSS_LIMIT] else 1.0
    up, down, limit = scale, scale, rates[NET_LIMIT]
    if (longs - shorts) * scale > limit:
        up = (limit + shorts * scale) / longs
    elif (shorts - longs) * scale > limit:
        down = (limit + longs * scale) / shorts
    turnover = 0.0
    for a in range(held.shape[2]):
        if panel[t + 1, a, CODE] == TRADABLE and not math.isnan(targets[b, a]):
            weight = _wanted(targets[b, a], terms, a)
            weight *= up if weight > 0.0 else down
            turnover += abs(weight - held[b, UNITS, a] * panel[t + 1, a, OPEN] / equity)
    part = rates[TURNOVER_LIMIT] / turnover if turnover > rates[TURNOVER_LIMIT] else 1.0
    return up, down, part


@_helper
def _in_lots(weight, equity, price, units, terms, a):  # type: ignore[no-untyped-def]
    """Units for a weight, in whole lots; what is held where the order would be too small."""
    desired = weight * equity / price
    lot = terms[a, LOT]
    if lot > 0.0:
        # A weight that was made from whole lots must find them again, whatever its last bit.
        desired = math.copysign(math.floor(abs(desired) / lot * (1.0 + 1e-12)) * lot, desired)
    if desired != 0.0 and abs(desired - units) * price < terms[a, LEAST_ORDER]:
        return units
    return desired


@_helper
def _trade_bounded(t, equity, targets, panel, rates, terms, book, held, orders, info, b):  # type: ignore[no-untyped-def]
    """`_trade` with everything a broker or a desk may ask for."""
    up, down, part = _bounded(t, equity, targets, panel, rates, terms, held, b)
    traded = 0.0
    for a in range(held.shape[2]):
        code = panel[t + 1, a, CODE]
        units = held[b, UNITS, a]
        price = panel[t + 1, a, OPEN]
        if code == TRADABLE:
            weight = _wanted(targets[b, a], terms, a)
            weight *= up if weight > 0.0 else down
            now = units * price / equity
            weight = now + (weight - now) * part if part < 1.0 else weight
            if math.isnan(targets[b, a]) or abs(weight - now) < rates[BAND]:
                continue
            desired = _in_lots(weight, equity, price, units, terms, a)
        elif code == DELISTED:
            desired = 0.0
        else:
            continue
        traded += _settle(desired, price, panel[t, a, IMPACT], rates, terms, book, held, orders, info, a, b)
    return traded


@_helper
def _trade(t, equity, targets, panel, rates, terms, book, held, orders, info, b):  # type: ignore[no-untyped-def]
    """Trade to the targets at the open of bar t + 1; returns the notional traded."""
    n_assets = held.shape[2]
    gross = 0.0
    for a in range(n_assets):
        code = panel[t + 1, a, CODE]
        if code != NOT_LISTED and code != DELISTED and not math.isnan(targets[b, a]):
            gross += abs(targets[b, a])
    scale = rates[GROSS_LIMIT] / gross if gross > rates[GROSS_LIMIT] else 1.0
    traded = 0.0
    for a in range(n_assets):
        code = panel[t + 1, a, CODE]
        units = held[b, UNITS, a]
        price = panel[t + 1, a, OPEN]
        if code == TRADABLE:
            weight = targets[b, a] * scale
            if math.isnan(weight) or abs(weight - units * price / equity) < rates[BAND]:
                continue
            desired = weight * equity / price
        elif code == DELISTED:
            desired = 0.0
        else:
            continue
        traded += _settle(desired, price, panel[t, a, IMPACT], rates, terms, book, held, orders, info, a, b)
    return traded


@_helper
def _worth(t, column, panel, held, b):  # type: ignore[no-untyped-def]
    """(net, gross) value of what is held, at open or close of bar t."""
    net, gross = 0.0, 0.0
    for a in range(held.shape[2]):
        value = held[b, UNITS, a] * panel[t, a, column]
        net += value
        gross += abs(value)
    return net, gross


@_helper
def _interest(t, years, panel, rates, terms, book, held, info, b):  # type: ignore[no-untyped-def]
    """Book what cash earns and what debit, short positions and funding cost from close t to close t + 1."""
    cash, time = book[b, CASH], years[t + 1]
    paid = -min(cash, 0.0) * rates[DEBIT_RATE] * time
    earned = max(cash, 0.0) * rates[CASH_RATE] * time
    if terms is None:
        short = 0.0
        for a in range(held.shape[2]):
            short -= min(held[b, UNITS, a] * panel[t, a, CLOSE], 0.0)
        paid = short * rates[BORROW_RATE] * time + paid
    else:
        for a in range(held.shape[2]):
            value = held[b, UNITS, a] * panel[t, a, CLOSE]
            funding = value * terms[a, FUNDING] * time  # a long position pays, a short one is paid
            paid += max(funding, 0.0) - min(value, 0.0) * terms[a, BORROW_OF] * time
            earned -= min(funding, 0.0)
    book[b, CASH] = cash + earned - paid
    info[INTEREST_PAID, b] = paid
    info[INTEREST_EARNED, b] = earned


@_helper
def _account(t, targets, panel, years, rates, terms, book, held, clock, orders, info, b):  # type: ignore[no-untyped-def]
    """Rules 1 to 5 of docs/ideas/trading-environment.md for one env, close t to close t + 1; True when it ends."""
    before = book[b, EQUITY]
    at_close, _ = _worth(t, CLOSE, panel, held, b)
    _interest(t, years, panel, rates, terms, book, held, info, b)
    at_open, gross = _worth(t + 1, OPEN, panel, held, b)
    equity = book[b, CASH] + at_open
    pnl = at_open - at_close
    floor = rates[FLOOR]
    if equity < rates[MAINTENANCE] * gross or equity <= floor:
        ended = True
        traded = _close_all(t + 1, OPEN, panel, rates, terms, book, held, orders, info, b)
    else:
        ended = False
        traded = 0.0
        if clock[b, ENDED] == 0:
            if terms is None:
                traded = _trade(t, equity, targets, panel, rates, terms, book, held, orders, info, b)
            else:
                traded = _trade_bounded(t, equity, targets, panel, rates, terms, book, held, orders, info, b)
        value, _ = _worth(t + 1, OPEN, panel, held, b)
        marked, gross = _worth(t + 1, CLOSE, panel, held, b)
        pnl += marked - value
        now = book[b, CASH] + marked
        if now < rates[MAINTENANCE] * gross or now <= floor:
            ended = True
            traded += _close_all(t + 1, CLOSE, panel, rates, terms, book, held, orders, info, b)
    net, gross = _worth(t + 1, CLOSE, panel, held, b)
    now = book[b, CASH] + net
    if now < floor:
        info[WRITE_OFF, b] = floor - now
        book[b, CASH] += floor - now
        now = floor
    book[b, EQUITY] = now
    paid = info[COMMISSION, b] + info[SPREAD, b] + info[PRICE_IMPACT, b] + info[FEES, b] + info[INTEREST_PAID, b]
    info[PNL, b] = pnl
    info[STEP_RETURN, b] = math.log(now / before)
    info[COSTS_FRACTION, b] = paid / before
    info[TURNOVER, b] = traded / max(equity, floor)
    info[EXPOSURE, b] = gross / now
    info[NET_EXPOSURE, b] = net / now
    return ended


@_helper
def _observe(b, panel, inputs, book, held, clock, obs):  # type: ignore[no-untyped-def]
    """Market inputs of the bar, then weights, returns since entry, and the drawdown over the last W closes."""
    t, n_market, n_assets = clock[b, BAR], inputs.shape[1], held.shape[2]
    for i in range(n_market):
        obs[b, i] = inputs[t, i]
    equity = book[b, EQUITY]
    for a in range(n_assets):
        units, price = held[b, UNITS, a], panel[t, a, CLOSE]
        gain = 0.0
        if units != 0.0:
            gain = math.log(price / held[b, ENTRY, a])
            gain = max(-ENTRY_RETURN_LIMIT, min(ENTRY_RETURN_LIMIT, gain if units > 0.0 else -gain))
        obs[b, n_market + a] = units * price / equity
        obs[b, n_market + n_assets + a] = gain
    obs[b, n_market + 2 * n_assets] = equity / book[b, PEAK] - 1.0


@_helper
def _remember(b, book, clock, ring):  # type: ignore[no-untyped-def]
    """Put the equity into the ring and keep its peak; the ring is searched only when the peak itself drops out."""
    slot, equity = clock[b, LENGTH] % ring.shape[1], book[b, EQUITY]
    dropped = ring[b, slot]
    ring[b, slot] = equity
    if equity >= book[b, PEAK]:
        book[b, PEAK] = equity
    elif dropped >= book[b, PEAK]:
        peak = equity
        for i in range(ring.shape[1]):
            peak = max(peak, ring[b, i])
        book[b, PEAK] = peak


@_helper
def _begin(b, start, end, trade_from, rates, book, held, clock, ring):  # type: ignore[no-untyped-def]
    """A flat account at bar `start`."""
    clock[b, BAR], clock[b, END], clock[b, TRADE_FROM] = start, end, trade_from
    clock[b, LENGTH] = clock[b, ENDED] = 0
    book[b, CASH] = book[b, EQUITY] = book[b, PEAK] = rates[INITIAL]
    book[b, EPISODE_REWARD] = book[b, SHARPE_MEAN] = 0.0
    book[b, SHARPE_SQUARE] = rates[SHARPE_PRIOR]
    held[b] = 0.0
    ring[b] = 0.0
    ring[b, 0] = rates[INITIAL]


@_helper
def _random(seed, stream, counter, draw):  # type: ignore[no-untyped-def]
    """64 random bits of (seed, stream, counter, draw): SplitMix64's mixer over the four (Steele et al. 2014)."""
    z = np.uint64(seed)
    for word in (np.uint64(stream), np.uint64(counter), np.uint64(draw)):
        z = (z ^ word) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return z


@_helper
def begin_random(b, window, rates, book, held, clock, ring):  # type: ignore[no-untyped-def]
    """The next random window of environment b; window: first bar, bars, steps, seed, first env, stagger."""
    first, n_bars, steps = window[0], window[1], window[2]
    episode = clock[b, EPISODE]
    if window[5] != 0 and episode == 0:
        # The first episode is cut to a random length, so that environments do not end in step for ever.
        steps = 1 + np.int64(_random(window[3], window[4] + b, episode, 1) % np.uint64(steps))
    starts = n_bars - steps
    start = first + np.int64(_random(window[3], window[4] + b, episode, 0) % np.uint64(starts))
    clock[b, EPISODE] = episode + 1
    _begin(b, start, start + steps, start, rates, book, held, clock, ring)


@_helper
def _reward(b, rates, book, info):  # type: ignore[no-untyped-def]
    """step_return, or the differential Sharpe ratio (Moody and Saffell 2001, eq. 9) with a prior variance."""
    gain = info[STEP_RETURN, b]
    if rates[SHARPE_REWARD] == 0.0:
        return gain
    mean, square, rate = book[b, SHARPE_MEAN], book[b, SHARPE_SQUARE], rates[SHARPE_RATE]
    d_mean, d_square = gain - mean, gain * gain - square
    variance = max(square - mean * mean, 1e-4 * rates[SHARPE_PRIOR])
    book[b, SHARPE_MEAN] = mean + rate * d_mean
    book[b, SHARPE_SQUARE] = square + rate * d_square
    return (square * d_mean - 0.5 * mean * d_square) / variance**1.5


@_entry
def step_all(  # type: ignore[no-untyped-def]
    targets, panel, inputs, years, rates, terms, window, auto,
    book, held, clock, ring, orders, info, obs, final, reward, ends,
):  # fmt: skip
    """Step every environment by one bar; returns how many episodes ended. ends (2, B): terminated, truncated.

    With `auto` an environment that ended starts again in a new random window and its last observation goes to `final`;
    without it, an ended account stays in cash to the end of its window.
    """
    n_ended = 0
    for b in range(clock.shape[0]):
        t = clock[b, BAR]
        ended = False
        if t >= clock[b, TRADE_FROM]:
            ended = (
                _account(t, targets, panel, years, rates, terms, book, held, clock, orders, info, b)
                and clock[b, ENDED] == 0
            )
        else:  # warm-up: flat, nothing is traded, no interest
            info[STEP_RETURN, b] = 0.0
        info[EQUITY_NOW, b], info[CASH_NOW, b], info[BAR_NOW, b] = book[b, EQUITY], book[b, CASH], t + 1
        clock[b, BAR] = t + 1
        clock[b, LENGTH] += 1
        _remember(b, book, clock, ring)
        reward[b] = _reward(b, rates, book, info)
        book[b, EPISODE_REWARD] += reward[b]
        info[REWARD_SO_FAR, b], info[LENGTH_SO_FAR, b] = book[b, EPISODE_REWARD], clock[b, LENGTH]
        ends[0, b] = ended
        ends[1, b] = not ended and t + 1 >= clock[b, END]
        if ended:
            clock[b, ENDED] = 1
        if auto and (ends[0, b] or ends[1, b]):
            n_ended += 1
            _observe(b, panel, inputs, book, held, clock, final)
            begin_random(b, window, rates, book, held, clock, ring)
        _observe(b, panel, inputs, book, held, clock, obs)
    return n_ended


@_entry
def begin_all(window, rates, book, held, clock, ring):  # type: ignore[no-untyped-def]
    """A new random window for every environment."""
    for b in range(clock.shape[0]):
        begin_random(b, window, rates, book, held, clock, ring)


@_entry
def place_all(start, end, trade_from, rates, book, held, clock, ring):  # type: ignore[no-untyped-def]
    """The same explicit window for every environment."""
    for b in range(clock.shape[0]):
        _begin(b, start, end, trade_from, rates, book, held, clock, ring)


@_entry
def observe_all(panel, inputs, book, held, clock, obs):  # type: ignore[no-untyped-def]
    """Observation of every environment as it stands."""
    for b in range(clock.shape[0]):
        _observe(b, panel, inputs, book, held, clock, obs)
