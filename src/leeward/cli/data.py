"""`leeward data check` and `leeward data fetch`."""

from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from leeward.cli.view import say
from leeward.config.load import load_config
from leeward.errors import ConfigError
from leeward.market import check
from leeward.market.exchange import download, open_exchange

__all__ = ["check_command", "fetch_command"]


def check_command(source: str, settings: list[str]) -> None:
    """Print one line per problem; exit code 1 when there is an error among them."""
    console = Console()
    config = load_config(None, [f"data.{setting.removeprefix('data.')}" for setting in settings]).data
    problems = check(source, config)
    for problem in problems:
        say(console, str(problem))
    errors = sum(problem.severity == "error" for problem in problems)
    if errors:
        raise SystemExit(1)
    warnings = f", {len(problems)} warning{'s' if len(problems) > 1 else ''}" if problems else ""
    say(console, f"{source}: good{warnings}")


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
