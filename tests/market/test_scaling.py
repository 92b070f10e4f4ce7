"""Two scalers are the same, or words say what sets them apart."""

import numpy as np
import pytest

from leeward.config.trading import DataConfig
from leeward.market import Scaler, fit_scaler, load, prepare


def scaler(mean=(0.5, -2.0, 0.0), std=(0.25, 4.0, 1.0), names=("gap", "rsi_14", "return_1"), clip=5.0):
    return Scaler(tuple(names), np.array(mean), np.array(std), clip)


def test_the_first_feature_that_differs_is_named_with_both_its_scales():
    found = scaler().difference(scaler(mean=(0.5, -2.5, 1.0)))
    assert found == "rsi_14 has mean -2.5 and standard deviation 4.0, not -2.0 and 4.0"
    found = scaler().difference(scaler(std=(0.5, 4.0, 1.0)))
    assert found == "gap has mean 0.5 and standard deviation 0.5, not 0.5 and 0.25"
    assert scaler().difference(scaler(clip=None)) == "values are clipped at None, not 5.0"
    assert scaler().difference(scaler(names=("gap", "rsi_14", "return_5"))) == (
        "the features are gap, rsi_14, return_5, not gap, rsi_14, return_1"
    )


def test_the_tolerance_is_in_standard_deviations_of_the_feature():
    # 4 · 1e-3 = 0.004 for the second feature: 0.003 is inside, 0.005 is not; the first one has a sixteenth of that room
    assert scaler().difference(scaler(mean=(0.5, -2.003, 0.0)), tolerance=1e-3) is None
    assert scaler().difference(scaler(mean=(0.5, -2.005, 0.0)), tolerance=1e-3) is not None
    assert scaler().difference(scaler(mean=(0.503, -2.0, 0.0)), tolerance=1e-3) is not None
    assert scaler().difference(scaler(std=(0.25, 4.003, 1.0)), tolerance=1e-3) is None
    assert scaler().difference(scaler()) is None


@pytest.mark.parametrize("features", [None, ("return_1", "volume_z_20")])
def test_what_is_fitted_alone_is_what_prepare_fits(features):
    config = DataConfig(features=features)
    bars = load("sample:nasdaq")
    assert prepare(config, bars=bars).scaler.difference(fit_scaler(bars, config)) is None
