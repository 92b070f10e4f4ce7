"""Is the critic right out of sample? Its predictions along a split against the returns that then came."""

import math

import numpy as np
import torch

from leeward.backtest import BacktestResult
from leeward.maths import diagnostics, returns
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["critic_numbers"]

_LEFT_OUT = 0.01  # a return is whole when what lies behind the split's end weighs less than this
_MIN_BARS = 30


def critic_numbers(result: BacktestResult, *, gamma: float) -> Numbers:
    """Explained variance and calibration of the discounted log-returns along a run; empty where too few are whole."""
    outlook, n = result.outlook, len(result.step_returns)
    tail = 0 if gamma == 0.0 else n if gamma == 1.0 else math.ceil(math.log(_LEFT_OUT) / math.log(gamma))
    whole = n - tail
    if outlook is None or whole < _MIN_BARS:
        return {}
    rewards = torch.as_tensor(result.step_returns)[:, None]  # (n, 1)
    ended = torch.zeros_like(rewards, dtype=torch.bool)
    ended[-1] = True
    nothing = torch.zeros_like(rewards)
    realised = returns.lambda_returns(rewards, nothing, ended, ended, gamma=gamma, lam=1.0)[:whole]  # (n', 1)
    predicted = torch.as_tensor(outlook.mean)[:whole, None]
    quantiles, levels = (torch.as_tensor(np.asarray(each)) for each in (outlook.quantiles, outlook.levels))
    numbers = {
        metrics.EVAL_CALIBRATION_ERROR: float(diagnostics.calibration_error(quantiles[:whole], realised, levels))
    }
    explained = float(diagnostics.explained_variance(predicted, realised))
    if not math.isnan(explained):  # an account that never moves has no variance to explain
        numbers[metrics.EVAL_EXPLAINED_VARIANCE] = explained
    return numbers
