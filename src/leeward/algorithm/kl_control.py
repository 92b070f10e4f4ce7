"""Two small objects that look at the KL divergence: the stop, and the optional penalty."""

from leeward.config.learning import KLPenalty, KLStop

__all__ = ["KLPenaltyController", "stops"]


def stops(kl: float, config: KLStop) -> bool:
    """Whether the epochs end here, before the step; the next update starts with all of them again."""
    return config.target is not None and kl > config.target * config.tolerance


class KLPenaltyController:
    """β ← 2β above 1.5 × target, β/2 below target/1.5 (Schulman et al. 2017, arXiv:1707.06347, §4)."""

    def __init__(self, config: KLPenalty) -> None:
        self.config = config
        self.coefficient = config.initial

    def observe(self, kl: float) -> None:
        if kl > 1.5 * self.config.target:
            self.coefficient = min(2.0 * self.coefficient, self.config.ceiling)
        elif kl < self.config.target / 1.5:
            self.coefficient /= 2.0

    def state_dict(self) -> dict[str, float]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.coefficient = state["coefficient"]
