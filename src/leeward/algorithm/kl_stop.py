"""Two small rules that look at the KL divergence: the stop, and the optional penalty."""

from leeward.config.learning import KLPenalty

__all__ = ["TOLERANCE", "KLPenaltyController", "stops"]

_FLOOR = 2.0**-10  # of `initial`: β comes back within ten updates
TOLERANCE = 1.5  # SB3's: epochs end above this × target_kl


def stops(kl: float, target: float | None) -> bool:
    """Whether the epochs end here, before the step; the next update starts with all of them again. `kl` in nats."""
    return target is not None and kl > target * TOLERANCE


class KLPenaltyController:
    """β ← 2β above 1.5 × target, β/2 below target/1.5 (Schulman et al. 2017, arXiv:1707.06347, §4)."""

    def __init__(self, config: KLPenalty) -> None:
        self.coefficient = config.initial

    def observe(self, kl: float, config: KLPenalty) -> None:
        if kl > 1.5 * config.target:
            self.coefficient = min(2.0 * self.coefficient, config.ceiling)
        elif kl < config.target / 1.5:
            # Not below what ten updates can double back from: else a long quiet time switches it off for good.
            self.coefficient = max(0.5 * self.coefficient, config.initial * _FLOOR)

    def state_dict(self) -> dict[str, float]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.coefficient = state["coefficient"]
