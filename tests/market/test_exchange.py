"""Downloading from a loopback server that speaks the exchange's kline format."""

import json
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

import pytest

from leeward.errors import ArgumentError, DataError, MissingExtra
from leeward.market import load
from leeward.market.exchange import download, open_exchange

pytest.importorskip("ccxt")

FOUR_HOURS = 4 * 3600 * 1000
START = int(datetime(2021, 1, 1, tzinfo=UTC).timestamp() * 1000)
SYMBOL = {
    "symbol": "BTCUSDT", "status": "TRADING", "baseAsset": "BTC", "quoteAsset": "USDT", "baseAssetPrecision": 8,
    "quoteAssetPrecision": 8, "orderTypes": ["LIMIT"], "isSpotTradingAllowed": True, "isMarginTradingAllowed": False,
    "permissions": ["SPOT"], "filters": [],
}  # fmt: skip


class Exchange(ThreadingHTTPServer):
    """Serves `n_bars` four-hour bars; the first `busy` requests for bars are answered 429."""

    def __init__(self, n_bars, busy=0):
        self.n_bars, self.busy, self.requests = n_bars, busy, []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path, query = urlparse(self.path).path, parse_qs(urlparse(self.path).query)
        if path == "/api/v3/exchangeInfo":
            return self.answer(200, {"symbols": [SYMBOL], "rateLimits": [], "timezone": "UTC"})
        assert path == "/api/v3/klines"
        self.server.requests.append(query)
        if len(self.server.requests) <= self.server.busy:
            return self.answer(429, {"code": -1003, "msg": "Too many requests."})
        since, limit = int(query["startTime"][0]), int(query["limit"][0])
        first = max(0, -(-(since - START) // FOUR_HOURS))
        rows = []
        for i in range(first, min(first + limit, self.server.n_bars)):
            opened, price = START + i * FOUR_HOURS, 30_000 + i
            cells = [f"{price}.5", f"{price + 9}", f"{price - 9}", f"{price + 1}", f"{100 + i}.25"]
            rows.append([opened, *cells, opened + FOUR_HOURS - 1, "0", 1, "0", "0", "0"])
        return self.answer(200, rows)

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(*args, **kwargs):
        servers.append(Exchange(*args, **kwargs))
        settings = {"options": {"fetchMarkets": {"types": ["spot"]}}, "rateLimit": 1}
        return servers[-1], open_exchange("binance", base_url=servers[-1].url, settings=settings)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


SINCE = datetime(2021, 1, 1, tzinfo=UTC)


def test_pages_are_joined_and_read_back_as_bars(tmp_path, serve):
    _, client = serve(2_345)
    seen = []
    new = download(client, "BTC/USDT", "4h", tmp_path / "btc.csv", since=SINCE, progress=lambda n, _: seen.append(n))
    assert (new, seen) == (2_345, [1_000, 2_000, 2_345])
    bars = load(tmp_path / "btc.csv")
    assert len(bars) == 2_345 and bars.assets == ("btc",)
    assert str(bars.time[1]) == "2021-01-01T04:00:00.000000000"
    assert (bars.open[7, 0], bars.close[7, 0], bars.volume[7, 0]) == (30_007.5, 30_008.0, 107.25)


def test_a_download_goes_on_where_it_was_cut_off(tmp_path, serve):
    server, client = serve(1_500)
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    download(client, "BTC/USDT", "4h", whole, since=SINCE)
    content = whole.read_bytes()
    for length in (3, len(content) // 3, len(content) - 5, len(content)):
        cut.write_bytes(content[:length])
        server.requests.clear()
        download(client, "BTC/USDT", "4h", cut, since=SINCE)
        assert cut.read_bytes() == content, length
    assert int(server.requests[0]["startTime"][0]) == START + 1_500 * FOUR_HOURS  # nothing was fetched twice


def test_until_and_the_unfinished_bar_are_left_out(tmp_path, serve):
    _, client = serve(100)
    assert download(client, "BTC/USDT", "4h", tmp_path / "a.csv", since=SINCE, until=datetime(2021, 1, 3)) == 12
    now = datetime(2021, 1, 2, 4, 0, 1, tzinfo=UTC)  # bar 7 opened a second ago
    assert download(client, "BTC/USDT", "4h", tmp_path / "b.csv", since=SINCE, now=now) == 7


def test_a_busy_exchange_is_asked_again_more_slowly(tmp_path, serve):
    _, client = serve(20, busy=3)
    waits = []
    assert download(client, "BTC/USDT", "4h", tmp_path / "a.csv", since=SINCE, sleep=waits.append) == 20
    assert waits == [1.0, 2.0, 4.0]
    _, client = serve(20, busy=99)
    with pytest.raises(DataError, match=r"gave up after 6 tries at 2021-01-01.*it continues where it stopped"):
        download(client, "BTC/USDT", "4h", tmp_path / "b.csv", since=SINCE, sleep=waits.append)


def test_wrong_names_are_answered_with_the_nearest(tmp_path, serve):
    _, client = serve(5)
    with pytest.raises(ArgumentError, match="no market 'BTC/USDC'; did you mean 'BTC/USDT'"):
        download(client, "BTC/USDC", "4h", tmp_path / "a.csv", since=SINCE)
    with pytest.raises(ArgumentError, match="no bars of '5h'"):
        download(client, "BTC/USDT", "5h", tmp_path / "a.csv", since=SINCE)
    with pytest.raises(ArgumentError, match="did you mean 'binance'"):
        open_exchange("binanse")
    (tmp_path / "mine.csv").write_text("my own notes\n")
    with pytest.raises(DataError, match="not a download of ours"):
        download(client, "BTC/USDT", "4h", tmp_path / "mine.csv", since=SINCE)


def test_without_ccxt_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ccxt", None)
    with pytest.raises(MissingExtra, match="pip install 'leeward\\[exchange\\]'"):
        open_exchange("binance")
