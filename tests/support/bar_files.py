"""Files of bars in the shapes people really have, and what must be read from them.

Every file holds the same forty bars: business days or, where a shape is of hours, hours. `SHAPES` are those that must be
read, `REFUSED` those that cannot be, each with words of the remedy that the message must name.
"""

# ruff: noqa: E501 - a line of a file is written as it stands there

import gzip
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["DAYS", "HOURS", "SHAPES", "REFUSED", "Shape"]

N = 40


def _bars(time: pd.DatetimeIndex, seed: int = 0, level: float = 187.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    close = np.round(level * np.exp(np.cumsum(0.01 * rng.standard_normal(len(time)))), 2)
    opens = np.round(np.concatenate([[level], close[:-1]]) * (1 + 0.002 * rng.standard_normal(len(time))), 2)
    columns = {
        "open": opens,
        "high": np.round(np.maximum(opens, close) * 1.004, 2),
        "low": np.round(np.minimum(opens, close) * 0.996, 2),
        "close": close,
        "volume": np.round(rng.uniform(1e5, 9e5, len(time)), -2),
    }
    return pd.DataFrame(columns, index=time)


DAYS = _bars(pd.bdate_range("2024-01-02", periods=N))
OTHER = _bars(pd.bdate_range("2024-01-02", periods=N), seed=1, level=402.0)
EET_HOURS = _bars(pd.date_range("2024-01-02", periods=N, freq="h"))  # as they stand; in UTC two hours earlier
MONTHS = _bars(pd.date_range("2019-01-01", periods=N, freq="MS"))
HOURS = _bars(pd.date_range("2024-01-02", periods=N, freq="h"))
DEAR = _bars(pd.bdate_range("2024-01-02", periods=N), level=43_210.0)
THOUSANDTHS = DAYS.assign(**{name: np.round(DAYS[name] / 100 + 1e-3, 3) for name in ("open", "high", "low", "close")})
CENTS = DAYS.assign(volume=DAYS["volume"] + 1.0)
CHEAP = _bars(pd.bdate_range("2024-01-02", periods=N), level=1.1).round(2)


@dataclass(frozen=True)
class Shape:
    """One file: how it is written, and what must come out of it."""

    write: Callable[[Path], Path | None]  # into a folder -> the file, None: the folder
    bars: pd.DataFrame = field(default_factory=lambda: DAYS)
    settings: dict[str, Any] = field(default_factory=dict)
    asset: str | None = None  # None: not looked at
    volume: bool = True
    says: str = ""  # a word of what the reader says it guessed
    second: pd.DataFrame | None = None  # a second asset


def _text(text: str, name: str = "AAPL.csv", encoding: str = "utf-8") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(text, encoding=encoding)
        return folder / name

    return write


def _lines(header: str | None, rows: list[str], newline: str = "\n") -> str:
    return newline.join([*([] if header is None else [header]), *rows]) + newline


def _rows(frame: pd.DataFrame, form: Callable[[pd.Timestamp, Any], str]) -> list[str]:
    return [form(time, row) for time, row in zip(frame.index, frame.itertuples(index=False), strict=True)]


def _csv(frame: pd.DataFrame, time: str, header: str, *, sep: str = ",", order: str = "ohlcv") -> str:
    letters = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume"}

    def line(stamp: pd.Timestamp, row: Any) -> str:
        return sep.join([stamp.strftime(time), *(str(getattr(row, letters[letter])) for letter in order)])

    return _lines(header or None, _rows(frame, line))


def _yfinance(*tickers: tuple[str, pd.DataFrame], by_ticker: bool = False, lines: int = 3) -> str:
    fields = ("close", "high", "low", "open", "volume")
    pairs = [(f, t) for f in fields for t in tickers] if not by_ticker else [(f, t) for t in tickers for f in fields]
    prices = ",".join(["Price", *(f.capitalize() for f, _ in pairs)])
    names = ",".join(["Ticker", *(t[0] for _, t in pairs)])
    head = [names, prices] if by_ticker else [prices, names]
    rows = [
        ",".join([str(time.date()), *(str(t[1].loc[time, f]) if time in t[1].index else "" for f, t in pairs)])
        for time in tickers[0][1].index
    ]
    return _lines(None, [*head, *(["Date" + "," * len(pairs)] if lines == 3 else []), *rows])


def _us(value: float, sign: str = "") -> str:
    return f"{sign}{value:,.2f}"


def _german(value: float) -> str:
    return _us(value).replace(",", "x").replace(".", ",").replace("x", ".")


def _ms(stamp: pd.Timestamp) -> int:
    return int(stamp.timestamp() * 1000)


def _arrays(frame: pd.DataFrame, order: str = "ohlcv", scale: int = 1, text: bool = False) -> list[list[Any]]:
    letters = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume"}
    out = []
    for time, row in frame.iterrows():
        cells = [float(row[letters[letter]]) for letter in order]
        out.append([_ms(time) // scale, *(map(str, cells) if text else cells)])
    return out


def _records(frame: pd.DataFrame, names: dict[str, str], time: Callable[[pd.Timestamp], Any]) -> list[dict[str, Any]]:
    key = names.get("time", "time")
    return [
        {key: time(stamp)} | {names.get(n, n): float(row[n]) for n in frame.columns} for stamp, row in frame.iterrows()
    ]


def _json(content: Any, name: str = "BTC.json") -> Callable[[Path], Path]:
    return _text(json.dumps(content), name)


def _feather(folder: Path) -> Path:
    DAYS.rename_axis("date").reset_index().to_feather(folder / "AAPL.feather")
    return folder / "AAPL.feather"


def _parquet(folder: Path) -> Path:
    DAYS.rename_axis("Date").to_parquet(folder / "AAPL.parquet")
    return folder / "AAPL.parquet"


def _gzip(folder: Path) -> Path:
    (folder / "AAPL.csv.gz").write_bytes(gzip.compress(DAYS.rename_axis("Date").to_csv().encode()))
    return folder / "AAPL.csv.gz"


def _zip(folder: Path) -> Path:
    rows = _lines(None, [",".join(map(str, [*row, _ms(DAYS.index[0]), 1, 2, 3, 4, 0])) for row in _arrays(HOURS)])
    with zipfile.ZipFile(folder / "BTCUSDT-1h-2024-01.zip", "w") as archive:
        archive.writestr("BTCUSDT-1h-2024-01.csv", rows)
    return folder / "BTCUSDT-1h-2024-01.zip"


def _zip_of_two(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "two.zip", "w") as archive:
        archive.writestr("export/AAPL.csv", DAYS.rename_axis("Date").to_csv())
        archive.writestr("export/MSFT.csv", OTHER.rename_axis("Date").to_csv())
        archive.writestr("export/README.txt", "These are bars.\n")
        archive.writestr("__MACOSX/export/._AAPL.csv", b"\x00\x05\x16\x07")
        archive.writestr("again.zip", b"PK")
    return folder / "two.zip"


def _months(folder: Path) -> None:
    """The dumps of an exchange: a file per month, each without a header."""
    rows = _lines(None, [",".join(map(str, row)) for row in _arrays(DAYS)]).splitlines(keepends=True)
    cut = sum(DAYS.index < "2024-02-01")
    (folder / "BTCUSDT-1d-2024-01.csv").write_text("".join(rows[:cut]))
    (folder / "BTCUSDT-1d-2024-02.csv").write_text("".join(rows[cut:]))


def _odd_index(folder: Path) -> Path:
    DAYS.rename_axis("stamp").to_parquet(folder / "AAPL.parquet")
    return folder / "AAPL.parquet"


def _by_name(form: str) -> str:
    """One column per field and asset, as a flattened yfinance frame has them."""
    both = {"AAPL": DAYS, "MSFT": OTHER}
    columns = {form.format(f.capitalize(), t): frame[f] for t, frame in both.items() for f in frame}
    return pd.DataFrame(columns).rename_axis("Date").to_csv()


def _directory(folder: Path) -> None:
    DAYS.rename_axis("Date").to_csv(folder / "AAPL.csv")
    OTHER.rename_axis("Date").to_csv(folder / "MSFT.csv")
    (folder / "README.txt").write_text("These are bars.\nDownloaded by hand.\n")
    (folder / ".hidden.csv").write_text("not, for, us\n")
    (folder / "meta.json").write_text('{"source": "somewhere", "tickers": ["AAPL", "MSFT"]}')
    (folder / "prices.xlsx").write_bytes(b"PK\x03\x04")


def _investing(value: float) -> str:
    return f"{value / 1e3:.2f}K"


def _split_file(*, raw: bool) -> str:
    """A 4:1 split on the 21st bar, in a column of its own, as yfinance's history() has it."""
    factor = np.where(np.arange(N) < 20, 4.0 if raw else 1.0, 1.0)
    rows = []
    for i, (time, row) in enumerate(DAYS.iterrows()):
        prices = [repr(float(row[n] * factor[i])) for n in ("open", "high", "low", "close")]
        rows.append(
            ",".join(
                [str(time.date()), *prices, repr(float(row.volume / factor[i])), "0.0", "4.0" if i == 20 else "0.0"]
            )
        )
    return _lines("Date,Open,High,Low,Close,Volume,Dividends,Stock Splits", rows)


SHAPES: dict[str, Shape] = {
    "yfinance, three header rows": Shape(_text(_yfinance(("AAPL", DAYS)), "prices.csv"), asset="AAPL"),
    "yfinance, two header rows": Shape(_text(_yfinance(("AAPL", DAYS), lines=2), "prices.csv"), asset="AAPL"),
    "yfinance, two tickers": Shape(
        _text(_yfinance(("AAPL", DAYS), ("MSFT", OTHER)), "prices.csv"), asset="AAPL", second=OTHER
    ),
    "yfinance, by ticker, one listed later": Shape(
        _text(_yfinance(("AAPL", DAYS), ("MSFT", OTHER.iloc[5:]), by_ticker=True), "prices.csv"),
        asset="AAPL",
        second=OTHER.iloc[5:],
    ),
    "yfinance, old and plain": Shape(_text(_csv(DAYS, "%Y-%m-%d", "Date,Open,High,Low,Close,Volume")), asset="AAPL"),
    "yfinance history, splits known to the prices": Shape(_text(_split_file(raw=False)), says="know of already"),
    "raw prices with a column of splits": Shape(_text(_split_file(raw=True)), says="applied"),
    "MetaTrader 5, days": Shape(
        _text(
            _lines(
                "<DATE>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>",
                _rows(
                    DAYS,
                    lambda t, r: f"{t:%Y.%m.%d}\t{r.open}\t{r.high}\t{r.low}\t{r.close}\t{int(r.volume)}\t0\t12",
                ),
            )
        ),
        says="TICKVOL",
    ),
    "MetaTrader 5, hours": Shape(
        _text(
            _lines(
                "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>",
                _rows(
                    HOURS,
                    lambda t, r: (
                        f"{t:%Y.%m.%d}\t{t:%H:%M:%S}\t{r.open}\t{r.high}\t{r.low}\t{r.close}\t{int(r.volume)}\t0\t2"
                    ),
                ),
            )
        ),
        bars=HOURS,
    ),
    "MetaTrader 4, no header": Shape(
        _text(
            _lines(
                None,
                _rows(HOURS, lambda t, r: f"{t:%Y.%m.%d,%H:%M},{r.open},{r.high},{r.low},{r.close},{int(r.volume)}"),
            )
        ),
        bars=HOURS,
        says="no header",
    ),
    "Stooq, days": Shape(_text(_csv(DAYS, "%Y-%m-%d", "Date,Open,High,Low,Close,Volume"), "aapl_us_d.csv")),
    "Stooq, bulk": Shape(
        _text(
            _lines(
                "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>",
                _rows(
                    DAYS,
                    lambda t, r: f"AAPL.US,D,{t:%Y%m%d},000000,{r.open},{r.high},{r.low},{r.close},{int(r.volume)},0",
                ),
            ),
            "aapl.us.txt",
        ),
        asset="AAPL.US",
        says="ignored",
    ),
    "Stooq, hours": Shape(
        _text(
            _lines(
                "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>",
                _rows(
                    HOURS,
                    lambda t, r: (
                        f"AAPL.US,60,{t:%Y%m%d},{t:%H%M%S},{r.open},{r.high},{r.low},{r.close},{int(r.volume)},0"
                    ),
                ),
            ),
            "aapl.us.txt",
        ),
        bars=HOURS,
        asset="AAPL.US",
    ),
    "HistData, semicolons, no header": Shape(
        _text(
            _lines(
                None,
                _rows(HOURS, lambda t, r: f"{t:%Y%m%d %H%M%S};{r.open};{r.high};{r.low};{r.close};{int(r.volume)}"),
            )
        ),
        bars=HOURS,
        says="no header",
    ),
    "Kraken, no header": Shape(
        _text(_lines(None, [",".join(map(str, [*row, 17])) for row in _arrays(HOURS, scale=1000)]), "XBTUSD_60.csv"),
        bars=HOURS,
        says="no header",
    ),
    "ccxt rows": Shape(_json(_arrays(HOURS)), bars=HOURS, asset="BTC"),
    "Binance klines": Shape(
        _json([[*row, _ms(HOURS.index[0]), "1.0", 5, "1.0", "1.0", "0"] for row in _arrays(HOURS, text=True)]),
        bars=HOURS,
    ),
    "Coinbase candles, newest first": Shape(
        _json(_arrays(HOURS, order="lhocv", scale=1000)[::-1]), bars=HOURS, says="newest"
    ),
    "Bitfinex candles": Shape(_json(_arrays(HOURS, order="ochlv")), bars=HOURS),
    "Kraken's answer": Shape(
        _json(
            {
                "error": [],
                "result": {
                    "XXBTZUSD": [[*row[:5], row[4], row[5], 9] for row in _arrays(HOURS, scale=1000, text=True)],
                    "last": 1,
                },
            }
        ),
        bars=HOURS,
        asset="XXBTZUSD",
    ),
    "Bybit's answer, newest first": Shape(
        _json(
            {
                "retCode": 0,
                "result": {"symbol": "BTCUSDT", "list": [[str(c) for c in [*r, 1]] for r in _arrays(HOURS)][::-1]},
            }
        ),
        bars=HOURS,
        asset="BTCUSDT",
    ),
    "Polygon's answer": Shape(
        _json(
            {
                "ticker": "AAPL",
                "results": _records(
                    DAYS, {"time": "t", "open": "o", "high": "h", "low": "l", "close": "c", "volume": "v"}, _ms
                ),
            }
        ),
        asset="AAPL",
    ),
    "Alpha Vantage's answer": Shape(
        _json(
            {
                "Meta Data": {"2. Symbol": "IBM"},
                "Time Series (Daily)": {
                    str(t.date()): {
                        f"{i}. {n}": str(row[n]) for i, n in enumerate(("open", "high", "low", "close", "volume"), 1)
                    }
                    for t, row in DAYS[::-1].iterrows()
                },
            }
        )
    ),
    "columns of lists": Shape(
        _json(
            {
                "s": "ok",
                "t": [_ms(t) // 1000 for t in DAYS.index],
                **{n[0]: DAYS[n].tolist() for n in ("open", "high", "low", "close", "volume")},
            }
        )
    ),
    "records": Shape(_json(_records(DAYS, {"time": "date"}, lambda t: str(t.date())), "AAPL.json"), asset="AAPL"),
    "JSON lines": Shape(
        _text(
            "\n".join(json.dumps(r) for r in _records(DAYS, {"time": "timestamp"}, lambda t: t.isoformat())),
            "AAPL.jsonl",
        ),
        asset="AAPL",
    ),
    "nasdaq.com, dollars, newest first": Shape(
        _text(
            _lines(
                "Date,Close/Last,Volume,Open,High,Low",
                _rows(
                    DAYS,
                    lambda t, r: (
                        f"{t:%m/%d/%Y},${r.close:.2f},{int(r.volume)},${r.open:.2f},${r.high:.2f},${r.low:.2f}"
                    ),
                )[::-1],
            )
        ),
        says="Close/Last",
    ),
    "investing.com": Shape(
        _text(
            _lines(
                '"Date","Price","Open","High","Low","Vol.","Change %"',
                _rows(
                    DEAR,
                    lambda t, r: ",".join(
                        f'"{c}"'
                        for c in (
                            f"{t:%m/%d/%Y}",
                            _us(r.close),
                            _us(r.open),
                            _us(r.high),
                            _us(r.low),
                            _investing(r.volume),
                            "0.50%",
                        )
                    ),
                )[::-1],
            )
        ),
        bars=DEAR,
        says="thousands",
    ),
    "German, semicolons and decimal commas": Shape(
        _text(
            _lines(
                "Datum;Eröffnung;Hoch;Tief;Schluss;Volumen",
                _rows(
                    DEAR,
                    lambda t, r: ";".join(
                        [f"{t:%d.%m.%Y}", *map(_german, (r.open, r.high, r.low, r.close)), f"{int(r.volume)}"]
                    ),
                ),
            )
        ),
        bars=DEAR,
        says="decimal",
    ),
    "decimal commas only": Shape(
        _text(
            _lines(
                "Date;Open;High;Low;Close;Volume",
                _rows(
                    CHEAP,
                    lambda t, r: ";".join(
                        [str(t.date())]
                        + [str(v).replace(".", ",") for v in (r.open, r.high, r.low, r.close)]
                        + [str(int(r.volume))]
                    ),
                ),
            )
        ),
        bars=CHEAP,
    ),
    "thousands by spaces and apostrophes": Shape(
        _text(
            _lines(
                "Date;Open;High;Low;Close;Volume",
                _rows(
                    DEAR,
                    lambda t, r: ";".join(
                        [str(t.date())]
                        + [_us(v).replace(",", "'") for v in (r.open, r.high, r.low, r.close)]
                        + [f"{int(r.volume):,}".replace(",", " ")]
                    ),
                ),
            )
        ),
        bars=DEAR,
    ),
    "Polygon flat files": Shape(
        _text(
            _lines(
                "ticker,volume,open,close,high,low,window_start,transactions",
                _rows(
                    DAYS,
                    lambda t, r: f"AAPL,{int(r.volume)},{r.open},{r.close},{r.high},{r.low},{_ms(t) * 10**6},77",
                ),
            )
        ),
        asset="AAPL",
        says="window_start",
    ),
    "Interactive Brokers, days": Shape(
        _text(
            _lines(
                "date,open,high,low,close,volume,average,barCount",
                _rows(DAYS, lambda t, r: f"{t:%Y%m%d},{r.open},{r.high},{r.low},{r.close},{r.volume},{r.close},12"),
            )
        )
    ),
    "Interactive Brokers, hours": Shape(
        _text(
            _lines(
                "date,open,high,low,close,volume,average,barCount",
                _rows(
                    HOURS, lambda t, r: f"{t:%Y%m%d  %H:%M:%S},{r.open},{r.high},{r.low},{r.close},{r.volume},1.0,12"
                ),
            )
        ),
        bars=HOURS,
    ),
    "Interactive Brokers, hours with a zone": Shape(
        _text(
            _lines(
                "date,open,high,low,close,volume",
                _rows(
                    HOURS.tz_localize("UTC").tz_convert("US/Eastern"),
                    lambda t, r: f"{t:%Y%m%d %H:%M:%S} US/Eastern,{r.open},{r.high},{r.low},{r.close},{r.volume}",
                ),
            )
        ),
        bars=HOURS,
    ),
    "CryptoDataDownload": Shape(
        _text(
            "https://www.CryptoDataDownload.com\n"
            + _lines(
                "unix,date,symbol,open,high,low,close,Volume BTC,Volume USD",
                _rows(
                    HOURS,
                    lambda t, r: (
                        f"{_ms(t) // 1000},{t:%Y-%m-%d %H:%M:%S},BTC/USD,"
                        f"{r.open},{r.high},{r.low},{r.close},{r.volume},{r.volume * 3}"
                    ),
                )[::-1],
            ),
            "Gemini_BTCUSD_1h.csv",
        ),
        bars=HOURS,
        asset="BTC/USD",
        says="CryptoDataDownload",
    ),
    "Excel's export with a byte order mark": Shape(
        _text(_csv(DAYS, "%Y-%m-%d", "Date;Open;High;Low;Close;Volume", sep=";"), encoding="utf-8-sig")
    ),
    "day first with slashes": Shape(_text(_csv(DAYS, "%d/%m/%Y", "Date,Open,High,Low,Close,Volume"))),
    "day first with slashes, no day above the twelfth": Shape(
        _text(_csv(DAYS.iloc[:8], "%d/%m/%Y", "Date,Open,High,Low,Close,Volume")), bars=DAYS.iloc[:8]
    ),
    "Bloomberg": Shape(
        _text(_csv(DAYS, "%m/%d/%Y", "Date,PX_OPEN,PX_HIGH,PX_LOW,PX_LAST,PX_VOLUME", order="ohlcv")), says="PX_LAST"
    ),
    "month names": Shape(
        _text(
            _lines(
                "Date,Open,High,Low,Close,Volume",
                _rows(DAYS, lambda t, r: f'"{t:%b %d, %Y}",{r.open},{r.high},{r.low},{r.close},{r.volume}'),
            )
        )
    ),
    "day, month name, year": Shape(_text(_csv(DAYS, "%d-%b-%Y", "Date,Open,High,Low,Close,Volume"))),
    "slashes, year first": Shape(_text(_csv(HOURS, "%Y/%m/%d %H:%M", "Date,Open,High,Low,Close,Volume")), bars=HOURS),
    "twelve-hour clock": Shape(_text(_csv(HOURS, "%m/%d/%Y %I:%M %p", "Date,Open,High,Low,Close,Volume")), bars=HOURS),
    "date and time apart": Shape(
        _text(_csv(HOURS, "%Y-%m-%d,%H:%M", "Date,Time,Open,High,Low,Close,Volume")), bars=HOURS
    ),
    "epoch in nanoseconds": Shape(
        _text(
            _lines(
                "timestamp,o,h,l,c,v",
                _rows(DAYS, lambda t, r: f"{_ms(t) * 10**6},{r.open},{r.high},{r.low},{r.close},{r.volume}"),
            )
        ),
        settings={"columns": {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume"}},
    ),
    "own names by data.columns": Shape(
        _text(_csv(DAYS, "%Y-%m-%d", "wann,auf,oben,unten,zu,menge")),
        settings={
            "columns": {
                "wann": "time",
                "auf": "open",
                "oben": "high",
                "unten": "low",
                "zu": "close",
                "menge": "volume",
            }
        },
    ),
    "a separator at the end of every line": Shape(
        _text(
            _lines(
                "Date,Open,High,Low,Close,Volume",
                _rows(DAYS, lambda t, r: f"{t.date()},{r.open},{r.high},{r.low},{r.close},{r.volume},"),
            )
        )
    ),
    "Windows line ends": Shape(_text(_csv(DAYS, "%Y-%m-%d", "Date,Open,High,Low,Close,Volume").replace("\n", "\r\n"))),
    "without a volume": Shape(_text(_csv(DAYS, "%Y-%m-%d", "Date,Open,High,Low,Close", order="ohlc")), volume=False),
    "newest first": Shape(
        _text(
            _lines(
                "Date,Open,High,Low,Close,Volume",
                _rows(DAYS, lambda t, r: f"{t.date()},{r.open},{r.high},{r.low},{r.close},{r.volume}")[::-1],
            )
        ),
        says="newest",
    ),
    "feather": Shape(_feather, asset="AAPL"),
    "Parquet": Shape(_parquet, asset="AAPL"),
    "gzip": Shape(_gzip, asset="AAPL"),
    "zip, Binance's archive": Shape(_zip, bars=HOURS, asset="BTCUSDT-1h-2024-01"),
    "zip of two files and others": Shape(_zip_of_two, asset="AAPL", second=OTHER, says="README.txt holds no bars"),
    "months of one asset, a file each": Shape(_months, asset="BTCUSDT-1d", says="2 files that follow each other"),
    "an index of times with a name of its own": Shape(_odd_index, asset="AAPL", says="time from 'stamp'"),
    "fields and tickers in one name": Shape(
        _text(_by_name("{0}_{1}")), asset="AAPL", second=OTHER, says="the assets are AAPL, MSFT"
    ),
    "tickers and fields in one name": Shape(_text(_by_name("{1} {0}")), asset="AAPL", second=OTHER),
    "a day without trade": Shape(
        _text(_csv(DAYS, "%Y-%m-%d", "Date,Open,High,Low,Close,Volume") + "2024-02-27,,,,,\n2024-02-28,-,-,-,-,0\n"),
        says="no price at all on line 42, 43: no bar",
    ),
    "an empty volume": Shape(
        _text(
            _lines(
                "Date,Close/Last,Volume,Open,High,Low",
                _rows(DAYS, lambda t, r: f"{t.date()},{r.close},--,{r.open},{r.high},{r.low}"),
            )
        ),
        volume=False,
        says="'Volume' is empty",
    ),
    "UTF-16, as Windows calls Unicode": Shape(
        _text(
            _csv(HOURS, "%Y.%m.%d\t%H:%M:%S", "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<VOL>", sep="\t"),
            encoding="utf-16",
        ),
        bars=HOURS,
    ),
    "the zone in the header": Shape(
        _text(_csv(EET_HOURS, "%Y.%m.%d %H:%M:%S", "Time (EET),Open,High,Low,Close,Volume ")),
        bars=EET_HOURS.set_axis(EET_HOURS.index - pd.Timedelta(hours=2)),
    ),
    "the currency in the header": Shape(
        _text(_csv(DAYS, "%Y-%m-%d", "timestamp,open (USD),high (USD),low (USD),close (USD),volume (BTC)"))
    ),
    "a twelve-hour clock beside the day": Shape(
        _text(_csv(HOURS, "%m/%d/%Y,%I:%M %p", "Date,Time,Open,High,Low,Close,Volume")), bars=HOURS
    ),
    "a twelve-hour clock after an ISO day": Shape(
        _text(_csv(HOURS, "%Y-%m-%d %I-%p", "Date,Open,High,Low,Close,Volume")), bars=HOURS
    ),
    "months, the day first in every date": Shape(
        _text(_csv(MONTHS, "%d/%m/%Y", "Date,Open,High,Low,Close,Volume")), bars=MONTHS, says="the day comes first"
    ),
    "months, the month first in every date": Shape(
        _text(_csv(MONTHS, "%m/%d/%Y", "Date,Open,High,Low,Close,Volume")), bars=MONTHS, says="the month comes first"
    ),
    "Stooq in Polish": Shape(_text(_csv(DAYS, "%Y-%m-%d", "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen"))),
    "OANDA's answer": Shape(
        _json(
            {
                "instrument": "EUR_USD",
                "candles": [
                    {"complete": True, "time": t.isoformat() + "Z", "volume": r.volume}
                    | {"mid": {"o": str(r.open), "h": str(r.high), "l": str(r.low), "c": str(r.close)}}
                    for t, r in zip(DAYS.index, DAYS.itertuples(), strict=True)
                ],
            }
        )
    ),
    "pandas' JSON": Shape(_json({c: {str(_ms(t)): v for t, v in DAYS[c].items()} for c in DAYS})),
    "pandas' JSON, split": Shape(
        _json({"columns": list(DAYS), "index": [_ms(t) for t in DAYS.index], "data": DAYS.to_numpy().tolist()})
    ),
    "a volume of thousands beside decimal commas": Shape(
        _text(
            _lines(
                "Date;Open;High;Low;Close;Volume",
                _rows(
                    CENTS,
                    lambda t, r: ";".join(
                        [
                            str(t.date()),
                            *(_german(p) for p in (r.open, r.high, r.low, r.close)),
                            f"{r.volume / 1e3:.3f}",
                        ]
                    ),
                ),
            )
        ),
        bars=CENTS,
        says="volume: a dot is between thousands",
    ),
    "a volume of thousands beside three decimals": Shape(
        _text(
            _lines(
                "Date;Open;High;Low;Close;Volume",
                _rows(
                    THOUSANDTHS,
                    lambda t, r: f"{t.date()};{r.open:.3f};{r.high:.3f};{r.low:.3f};{r.close:.3f};{r.volume:,.0f}",
                ),
            )
        ),
        bars=THOUSANDTHS,
        says="volume: a comma is between thousands",
    ),
    "three decimals everywhere between semicolons": Shape(
        _text(_csv(THOUSANDTHS, "%Y-%m-%d", "Date;Open;High;Low;Close;Volume", sep=";")),
        bars=THOUSANDTHS,
        says="a dot is the decimal point; if it stands between thousands",
    ),
    "a directory with other files in it": Shape(_directory, asset="AAPL", second=OTHER, says="README.txt"),
}

REFUSED: dict[str, tuple[Callable[[Path], Path | None], str]] = {
    "wide closes": (
        _text(_lines("Date,AAPL,MSFT", _rows(DAYS, lambda t, r: f"{t.date()},{r.close},{r.open}"))),
        "one file per asset",
    ),
    "closes alone": (
        _text(_lines("Date,Close", _rows(DAYS, lambda t, r: f"{t.date()},{r.close}"))),
        "all four prices",
    ),
    "prices in an order nobody can tell": (
        _text(_lines(None, _rows(DAYS, lambda t, r: f"{t.date()},{r.volume},{r.close},{r.low},{r.high},{r.open}"))),
        "add a header",
    ),
    "JSON without bars": (_json({"message": "limit reached"}), "no list of bars"),
    "an archive without bars": (lambda folder: _empty_zip(folder), "expected files ending in"),
    "bid and ask": (
        _text(_csv(DAYS, "%Y-%m-%d", "Date,BidOpen,BidHigh,BidLow,BidClose,Ticks")),
        "data.columns says which is which, as {BidOpen: open}",
    ),
    "bid and ask, apart": (
        _text(_csv(DAYS, "%Y-%m-%d", "Date,bid_open,bid_high,bid_low,bid_close,ticks")),
        "data.columns says which is which, as {bid_open: open}",
    ),
    "a zone that has several meanings": (
        _text(_csv(HOURS, "%Y-%m-%d %H:%M:%S", "Time (IST),Open,High,Low,Close,Volume")),
        "no column time",
    ),
    "days counted by a spreadsheet": (
        _text(
            _lines(
                "Date,Open,High,Low,Close",
                _rows(
                    DAYS, lambda t, r: f"{(t - pd.Timestamp('1899-12-30')).days},{r.open},{r.high},{r.low},{r.close}"
                ),
            )
        ),
        "'45293' is in no form of time that is known; write times as 2024-01-31",
    ),
    "a spreadsheet": (lambda folder: _spreadsheet(folder), "save its sheet as CSV"),
    "one series of an economic database": (
        _text(_lines("observation_date,SP500", _rows(DAYS, lambda t, r: f"{t.date()},{r.close}"))),
        "needs open, high, low and close",
    ),
    "no header, and thousands in the prices": (
        _text(
            _lines(None, _rows(DEAR, lambda t, r: f'"{t.date()}","{r.open:,}","{r.high:,}","{r.low:,}","{r.close:,}"'))
        ),
        "add a header",
    ),
    "names nobody knows": (
        _text(_csv(DAYS, "%Y-%m-%d", "when,a,b,c,d,e")),
        "data.columns",
    ),
    "a web page": (_text("<!DOCTYPE html><html><body>prices</body></html>"), "download the CSV"),
}


def _empty_zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "none.zip", "w") as archive:
        archive.writestr("inner.zip", b"PK")
        archive.writestr("picture.png", b"PNG")
    return folder / "none.zip"


def _spreadsheet(folder: Path) -> Path:
    (folder / "prices.xlsx").write_bytes(b"PK\x03\x04")
    return folder / "prices.xlsx"
