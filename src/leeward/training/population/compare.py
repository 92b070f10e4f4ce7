"""Who takes over from whom, from the scores of one moment: pure, so that thousands of members can be decided on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Standing", "better", "leads", "take_overs"]

_SHARE = 0.25  # of the members that may be taken over from, and of those that may take over


@dataclass(frozen=True)
class Standing:
    """What a member came to."""

    value: float  # the larger the better; NaN: none
    windows: tuple[float, ...]  # the same windows or episodes for every member
    ended: bool = False  # a health error, or too many crashes: there is nothing to go on with


def take_overs(
    standings: Mapping[int, Standing], *, margin: float, rng: np.random.Generator
) -> dict[int, int]:  # member -> source
    """Members of the last quarter take over from one of the first, if it leads; members that have ended always do.

    Nobody takes over from a member without a score.
    """
    order = sorted(standings, key=lambda member: (-_rank(standings[member]), member))
    few = max(1, round(_SHARE * len(order)))
    first = [member for member in order[:few] if math.isfinite(_rank(standings[member]))]
    lost = [member for member in order if standings[member].ended]
    last = [member for member in order[-few:] if member not in lost]
    found = {}
    for member in sorted({*lost, *last} - set(first)):
        if not first:
            break
        source = first[int(rng.integers(len(first)))]
        if member in lost or leads(standings[source], standings[member], margin=margin):
            found[member] = source
    return found


def leads(one: Standing, other: Standing, *, margin: float) -> bool:
    """Whether `one` is ahead by `margin` standard errors of the mean difference over windows; margin 0: always.

    Windows are paired: what all members suffer in the same one is no doubt about who is better.
    """
    if margin == 0.0:
        return True
    if not math.isfinite(_rank(other)):
        return math.isfinite(_rank(one))
    lead = _rank(one) - _rank(other)
    return lead > 0.0 and lead >= margin * _standard_error(one.windows, other.windows)


def better(one: Standing, other: Standing | None) -> bool:
    """Whether a member is the best that was seen so far."""
    return math.isfinite(_rank(one)) and (other is None or _rank(one) > _rank(other))


def _rank(standing: Standing) -> float:
    return standing.value if math.isfinite(standing.value) and not standing.ended else -math.inf


def _standard_error(one: Sequence[float], other: Sequence[float]) -> float:
    """Of the mean difference, over windows that both have a score in; infinite where there are too few to tell."""
    pairs = [a - b for a, b in zip(one, other, strict=True) if math.isfinite(a) and math.isfinite(b)]
    return float(np.std(pairs, ddof=1) / math.sqrt(len(pairs))) if len(pairs) > 1 else math.inf
