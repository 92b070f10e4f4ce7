"""Settings drawn from a space, and moved inside it. Everything stays inside the bounds that the config states."""

from collections.abc import Mapping

import numpy as np

from leeward.config.tune import Dimension, is_whole

__all__ = ["Settings", "draw", "explore"]

Settings = dict[str, float]  # config key -> value
Space = Mapping[str, Dimension]

_RESAMPLED = 0.25  # of moves: drawn anew from the whole dimension, as in Jaderberg et al. 2017
_STEP = 0.1  # of a dimension's width; of three decades it is a factor of two


def draw(space: Space, n: int, rng: np.random.Generator) -> list[Settings]:
    """First settings of `n` members. Each dimension is cut into n parts, and each part is drawn from once."""
    shares = {key: (rng.permutation(n) + rng.random(n)) / n for key in space}  # Latin hypercube
    return [{key: _value(key, space[key], shares[key][i]) for key in space} for i in range(n)]


def explore(space: Space, settings: Settings, rng: np.random.Generator) -> Settings:
    """Settings near those of another member: each one a step up or down, or now and then drawn anew."""
    return {key: _moved(key, dimension, settings[key], rng) for key, dimension in space.items()}


def _moved(key: str, dimension: Dimension, value: float, rng: np.random.Generator) -> float:
    if rng.random() < _RESAMPLED:
        return _value(key, dimension, rng.random())
    up = bool(rng.random() < 0.5)
    if dimension.values is not None:
        place = dimension.values.index(value) + (1 if up else -1)
        return dimension.values[min(max(place, 0), len(dimension.values) - 1)]
    share = dimension.share_of(value) + (_STEP if up else -_STEP)
    # Back from a bound by as much as it was passed: a setting at the bound is not drawn to it.
    share = -share if share < 0.0 else 2.0 - share if share > 1.0 else share
    return _value(key, dimension, share)


def _value(key: str, dimension: Dimension, share: float) -> float:
    value = dimension.at(float(share))
    return round(value) if is_whole(key) else value
