"""Bars from an exchange, through ccxt: page by page into a CSV file that can be continued at any time.

The file is the state: one line per finished bar. A download that was cut off goes on after the last whole line.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leeward.errors import ArgumentError, DataError, MissingExtra, did_you_mean

__all__ = ["download", "open_exchange"]

HEADER = "time,open,high,low,close,volume\n"
_PAGE_BARS, _TRIES, _FIRST_WAIT_SECONDS = 1_000, 6, 1.0


def open_exchange(name: str, *, base_url: str | None = None, settings: Mapping[str, Any] | None = None) -> Any:
    """A rate-limited ccxt client; `base_url` replaces scheme and host of every address (a proxy, a test server)."""
    try:
        import ccxt
    except ImportError:
        raise MissingExtra("ccxt", "exchange", "downloading bars") from None
    if name not in ccxt.exchanges:
        raise ArgumentError(f"no exchange {name!r} in ccxt; {did_you_mean(name, ccxt.exchanges)}")
    client = getattr(ccxt, name)({"enableRateLimit": True, **(settings or {})})
    if not client.has.get("fetchOHLCV"):
        raise ArgumentError(f"{name} gives no bars (ccxt: fetchOHLCV is not supported); choose another exchange")
    if base_url is not None:
        client.urls["api"] = _moved(client.urls["api"], base_url.rstrip("/"))
    return client


def _moved(urls: Any, base_url: str) -> Any:
    if isinstance(urls, Mapping):
        return {key: _moved(url, base_url) for key, url in urls.items()}
    return base_url + "/" + str(urls).split("://", 1)[1].partition("/")[2]


def download(
    client: Any,
    symbol: str,
    timeframe: str,
    path: Path,
    *,
    since: datetime,
    until: datetime | None = None,
    now: datetime | None = None,
    progress: Callable[[int, datetime], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Append the finished bars of [since, until) to the CSV at `path`; returns how many are new.

    A file that is there already is continued after its last bar. `now` decides which bars are finished.
    `progress(bars, newest)` is called after each page.
    """
    _check_market(client, symbol, timeframe)
    step = int(client.parse_timeframe(timeframe) * 1000)
    # A bar is finished one step after its opening; the exchange sends the unfinished one too.
    end = _milliseconds(now or datetime.now(UTC)) - step + 1
    if until is not None:
        end = min(end, _milliseconds(until))
    last = _last_time(path)
    cursor = _milliseconds(since) if last is None else last + step
    new = 0
    with path.open("a", encoding="utf-8", newline="") as file:
        if last is None and file.tell() == 0:
            file.write(HEADER)
        while cursor < end:
            rows = [row for row in _page(client, symbol, timeframe, cursor, sleep) if cursor <= row[0] < end]
            if not rows:
                break
            file.writelines(_line(row) for row in rows)
            file.flush()
            new += len(rows)
            cursor = int(rows[-1][0]) + step
            if progress:
                progress(new, datetime.fromtimestamp(rows[-1][0] / 1000, tz=UTC))
    return new


def _check_market(client: Any, symbol: str, timeframe: str) -> None:
    if client.timeframes and timeframe not in client.timeframes:
        raise ArgumentError(f"{client.id} has no bars of {timeframe!r}; known: {', '.join(client.timeframes)}")
    import ccxt

    try:
        client.load_markets()
    except ccxt.NetworkError as error:
        raise DataError(f"{client.id} cannot be reached: {error}; try again later") from error
    if symbol not in client.markets:
        raise ArgumentError(f"{client.id} has no market {symbol!r}; {did_you_mean(symbol, client.markets)}")


def _page(client: Any, symbol: str, timeframe: str, since: int, sleep: Callable[[float], None]) -> list[list[float]]:
    """One page, in order of time; waits and tries again when the exchange is busy or the line is down."""
    import ccxt

    wait = _FIRST_WAIT_SECONDS
    for attempt in range(1, _TRIES + 1):
        try:
            rows = client.fetch_ohlcv(symbol, timeframe, since=since, limit=_PAGE_BARS)
        except ccxt.NetworkError as error:  # rate limits (DDoSProtection, RateLimitExceeded) are network errors in ccxt
            if attempt == _TRIES:
                raise DataError(
                    f"{client.id} {symbol}: gave up after {_TRIES} tries at {_iso(since)}: {error}; "
                    "run the same command again later, it continues where it stopped"
                ) from error
            sleep(wait)
            wait *= 2.0
        else:
            return sorted(rows, key=lambda row: row[0])
    raise AssertionError("unreachable: the last try returns or raises")


def _last_time(path: Path) -> int | None:
    """Epoch ms of the last whole line; a line that was cut off is removed. None: no bar yet."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if not whole.startswith(HEADER.encode()):
        if content and HEADER.encode().startswith(content):  # cut off inside the header
            whole = b""
        else:
            raise DataError(
                f"{path} is not a download of ours: expected the header {HEADER.strip()!r}; give another file"
            )
    if whole != content:
        path.write_bytes(whole)
    lines = whole.splitlines()
    if len(lines) < 2:
        return None
    stamp = lines[-1].split(b",", 1)[0].decode()
    return _milliseconds(datetime.fromisoformat(stamp))


def _line(row: list[float]) -> str:
    return ",".join((_iso(int(row[0])), *(repr(float(cell)) for cell in row[1:6]))) + "\n"


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).isoformat()


def _milliseconds(moment: datetime) -> int:
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
