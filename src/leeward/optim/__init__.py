"""What stands between `backward()` and the new weights: a pipeline of gradient stages, and the optimisers."""

from leeward.optim.upgd import UPGD, UPGDW, AdaptiveUPGD
from leeward.optim.variance_scaler import VarianceScaler

__all__ = ["AdaptiveUPGD", "UPGD", "UPGDW", "VarianceScaler"]
