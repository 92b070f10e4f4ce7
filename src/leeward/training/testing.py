"""Test a trained run on a split. The test split is sealed: every examination of it is recorded before it begins."""

import hashlib
import warnings
from collections.abc import Callable

import numpy as np
import torch

from leeward.algorithm.ppo import DistributionalPPO
from leeward.backtest import Backtest, run_backtest
from leeward.backtest.robustness import RobustnessCurve, robustness_curve
from leeward.backtest.strategies import LAST_CHECKPOINT
from leeward.config.run import RunConfig
from leeward.env import best_clipped_linear
from leeward.errors import CheckpointError
from leeward.market import Market
from leeward.training.checkpoints import load_model
from leeward.training.run_dir import RunDir
from leeward.training.seal import Opening, open_seal

__all__ = ["Examination", "attack_run", "backtest_run"]

_BOOTSTRAP_STREAM = 7  # keeps the backtest's draws apart from the training's, whatever the seed


class Examination:
    """The best checkpoint of a run on a split of `market`. To make one is one opening, however much it is asked then.

    `opening` is what was recorded, None when the split holds no test bar of the run. `notice` is told when the last
    checkpoint, which is shown beside the best, is damaged and therefore left out.
    """

    opening: Opening | None

    def __init__(self, run: RunDir, market: Market, split: str, notice: Callable[[str], None] = warnings.warn) -> None:
        torch.set_num_threads(1)  # one observation at a time: more threads cost more than they give
        self._market, self._split, self._config = market, split, run.config()
        self._fingerprint = hashlib.sha256(run.config_file.read_bytes()).hexdigest()
        # Models first: a run without one opens nothing.
        self._agent = load_model(run.best_checkpoint())
        last, self._beside = run.checkpoint_list()[-1:], dict[str, DistributionalPPO]()
        try:
            if last:
                self._beside[LAST_CHECKPOINT] = load_model(last[0])
        except CheckpointError as error:
            notice(f"{error}. The best checkpoint is whole and is tested without the last one beside it.")
        window = market.split(split)
        end = window.start + window.n_decisions
        said = (past.seen(market.bars, window.start, end) for past in run.lineage())
        self._seen = next((words for words in said if words), "")
        self.opening = open_seal(run, market, split)

    def backtest(self, progress: Callable[[str], None] = lambda text: None) -> Backtest:
        """The best checkpoint over the split, the last one and the baselines beside it."""
        config = self._config
        return run_backtest(
            self._agent,
            self._market,
            config.env,
            split=self._split,
            rng=np.random.default_rng([config.seed, _BOOTSTRAP_STREAM]),
            alpha=config.risk[0].alpha,
            limit=config.risk[0].limit,
            best=_best_of_control(config, self._market, self._split),
            beside=self._beside,
            fingerprints={"config": self._fingerprint},
            in_sample=self._seen,
            openings=None if self.opening is None else self.opening.earlier + 1,
            n_offsets=config.backtest.n_offsets,
            n_draws=config.backtest.n_draws,
            progress=progress,
        )

    def attack(self) -> RobustnessCurve:
        """The best checkpoint's score over the split against the radius of each attack."""
        config = self._config
        return robustness_curve(
            self._agent,
            self._market,
            config.env,
            split=self._split,
            seed=config.seed,
            score=config.validation.score,
        )


def backtest_run(
    run: RunDir, market: Market, split: str, progress: Callable[[str], None] = lambda text: None
) -> Backtest:
    """An examination of its own: the backtest."""
    return Examination(run, market, split).backtest(progress)


def attack_run(run: RunDir, market: Market, split: str) -> RobustnessCurve:
    """An examination of its own: the score under attack."""
    return Examination(run, market, split).attack()


def _best_of_control(config: RunConfig, market: Market, split: str) -> np.ndarray | None:
    """The known best policy of the control market, fitted on train; None on any other market."""
    if market.bars.source != "sample:control" or "train" not in market.splits:
        return None
    best = best_clipped_linear(market, config.env)
    window = market.split(split)
    signal = market.bars.extra["feature_signal"][window.start : window.start + window.n_decisions]
    return best.targets(signal)
