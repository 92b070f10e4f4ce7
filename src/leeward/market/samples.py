"""Sample markets: real bars that other packages ship, read from their files, and synthetic ones.

nasdaq     5,031 daily bars of the NASDAQ Composite, 1999-2018, from `arch`: a price index without dividends, not itself
           tradable
eurusd_1h  hourly EUR/USD ask prices of 2017, from `gym-anytrading`
aapl       daily Apple bars, 2019-24, from `hvsampledata`
synthetic  GARCH-t with regimes; control: a planted signal whose best policy is known
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from leeward.errors import DataError, MissingExtra
from leeward.market.bars import Bars
from leeward.market.synthetic import control, synthetic

__all__ = ["PACKAGED", "SYNTHETIC"]


def _packaged(package: str, extra: str, *parts: str) -> Callable[[], Path]:
    def find() -> Path:
        # find_spec does not run the package: importing arch would import statsmodels, which takes seconds.
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise MissingExtra(package, extra, f"the sample file {parts[-1]}")
        path = Path(spec.origin).parent.joinpath(*parts)
        if not path.is_file():
            raise DataError(f"{path}: {package} is installed but this file of it is not; another version is needed")
        return path

    return find


PACKAGED: dict[str, Callable[[], Path]] = {
    "nasdaq": _packaged("arch", "trading", "data", "nasdaq", "nasdaq.csv.gz"),
    "eurusd_1h": _packaged("gym_anytrading", "dev", "datasets", "data", "FOREX_EURUSD_1H_ASK.csv"),
    "aapl": _packaged("hvsampledata", "dev", "_data", "apple_stocks.csv"),
}
SYNTHETIC: dict[str, Callable[[int, int | None], Bars]] = {"synthetic": synthetic, "control": control}
