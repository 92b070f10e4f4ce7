"""`leeward data check` and `leeward data fetch`."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from leeward.backtest.wording import count
from leeward.cli.view import say
from leeward.config.load import load_config
from leeward.config.trading import DataConfig
from leeward.errors import ConfigError
from leeward.market.exchange import download, open_exchange
from leeward.market.summary import Summary, summarise

__all__ = ["check_command", "data_settings", "fetch_command"]


def check_command(source: str, settings: list[str], *, json_object: bool = False) -> None:
    """Describe the bars, print one line per problem; exit code 1 when there is an error among them."""
    console = Console()
    config = DataConfig.read(data_settings(settings), where="--set data")
    found = summarise(source, config)
    if json_object:
        sys.stdout.write(json.dumps(found.as_dict(), indent=1) + "\n")
    else:
        for line in _described(found):
            say(console, line)
        for problem in found.problems:
            say(console, str(problem))
    if not found.good:
        raise SystemExit(1)
    if not json_object:
        warned = sum(problem.severity == "warning" for problem in found.problems)
        say(console, f"{source}: good" + (f", {warned} warning{'s' if warned > 1 else ''}" if warned else ""))


def _described(found: Summary) -> Iterator[str]:
    if not found.assets:
        return
    yield f"{len(found.assets)} asset{'s' if len(found.assets) > 1 else ''}, bars every {found.interval or 'one'}"
    width = max(len(asset.name) for asset in found.assets)
    for asset in found.assets:
        yield f"  {asset.name:<{width}}  {count(asset.bars)} bars, {asset.first} to {asset.last}"
    for name, window in (found.splits or {}).items():
        yield f"  {name + ':':<11} {count(window['bars'])} bars, {window['first']} to {window['last']}"
    yield f"Not enough to train on: {found.enough}" if found.enough else "Enough to train on."


def data_settings(settings: list[str]) -> dict[str, Any]:
    """Keys of `data`, from texts such as data.stamp=close or stamp=close."""
    full = [f"data.{setting.removeprefix('data.')}" for setting in settings]
    return load_config(None, full).data.model_dump(exclude_unset=True)


def fetch_command(exchange: str, symbol: str, timeframe: str, since: str, out: Path | None) -> None:
    """Download bars; a file that is there already is continued."""
    try:
        begin = datetime.strptime(since, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise ConfigError(f"--since {since!r}: expected a day such as 2021-01-01") from None
    path = out or Path(f"{exchange}-{symbol.replace('/', '')}-{timeframe}.csv")
    console = Console()
    with console.status(f"fetching {symbol} from {exchange}"):
        rows = download(open_exchange(exchange), symbol, timeframe, path, since=begin)
    say(console, f"{path}: {rows} new bars")
