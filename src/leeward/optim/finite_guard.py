"""No step is ever taken on a gradient that is not finite."""

import math

from torch import Tensor

from leeward.errors import NonFiniteUpdate

__all__ = ["FiniteGuard"]


class FiniteGuard:
    """Counts skipped steps, and stops training when too many come in a row."""

    def __init__(self, max_consecutive: int) -> None:
        self.max_consecutive = max_consecutive
        self.consecutive = 0

    def allows(self, norm: Tensor, update: int) -> bool:  # ()
        """Whether a step on a gradient of this global norm may be taken."""
        if math.isfinite(norm):  # torch.isfinite is five operations
            self.consecutive = 0
            return True
        self.skipped(update)
        return False

    def skipped(self, update: int) -> None:
        """Note a minibatch without a step; raises after `max_consecutive` of them."""
        self.consecutive += 1
        if self.consecutive >= self.max_consecutive:
            raise NonFiniteUpdate(
                f"update {update}: {self.consecutive} minibatches in a row had a loss or gradient that is not finite, "
                "and the weights are those of the last good step. Look at the counts of log-ratios that are not finite "
                "and at the env's rewards, lower the learning rate, or raise max_consecutive_skips"
            )

    def state_dict(self) -> dict[str, int]:
        return {"consecutive": self.consecutive}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.consecutive = state["consecutive"]
