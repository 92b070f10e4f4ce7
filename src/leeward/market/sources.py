"""Bars from files, frames and rows: every source goes through the same reading and the same checks."""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.config.trading import DataConfig
from leeward.durable import at_home
from leeward.errors import DataError, did_you_mean
from leeward.market import samples
from leeward.market.bars import Bars, FloatArray
from leeward.market.checks import examine, examine_joined
from leeward.market.column_names import ACTIONS, PRICES, USER_FEATURE
from leeward.market.columns import Columns, read_columns
from leeward.market.corporate_actions import apply_actions
from leeward.market.problems import Problem, limited, raise_on_errors
from leeward.market.reading import (
    CCXT_COLUMNS,
    SUFFIXES,
    UNREADABLE,
    Table,
    holds_bars,
    read_file,
    read_files,
    within_bounds,
)  # fmt: skip

__all__ = ["Source", "check", "examined", "from_ccxt", "from_frame", "load"]

Source: TypeAlias = "str | Path | pd.DataFrame | Sequence[Sequence[float]]"
_SAMPLE = "sample:"
_DATES_AT_THE_END = re.compile(r"([-_. ]?(19|20)\d{2}([-_.]?\d{2}){0,5})+$")
_SPARSEST, _ANY_PANEL = 20, 1_000_000  # places of a panel per bar that is there, and how many it may have in any case


def load(source: Source, config: DataConfig | None = None, *, name: str = "asset") -> Bars:
    """Bars of a file, a directory, sample:NAME, a DataFrame or ccxt rows; raises DataError when they are wrong.

    `name` is that of the only asset of a DataFrame or of rows, which cannot say it themselves.
    """
    problems, bars = examined(source, config, name=name)
    in_files = isinstance(source, str | Path)
    raise_on_errors(problems, f"leeward data check {shlex.quote(str(source))}" if in_files else "leeward.market.check")
    assert bars is not None
    return bars


def check(source: Source, config: DataConfig | None = None) -> list[Problem]:
    """Every problem of a source, at most 20 of a kind and then a count. Empty: nothing is wrong with these bars."""
    return limited(examined(source, config)[0])


def examined(
    source: Source, config: DataConfig | None = None, *, name: str = "asset"
) -> tuple[list[Problem], Bars | None]:
    """Every problem of a source, and its bars if there is no error among them."""
    config = config or DataConfig()
    if isinstance(source, str) and source.startswith(_SAMPLE):
        made = samples.SYNTHETIC.get(source.removeprefix(_SAMPLE))
        if made is not None:
            return [], made(config.seed, config.n_bars)
    where, tables = _tables(source, config.columns, name)
    ignored = _left_out(tables, where, config.columns) if len(tables) > 1 else []
    parts, problems = _read(tables, where, config)
    problems = _told_once(ignored + problems)
    if any(problem.severity == "error" for problem in problems):
        return problems, None
    return problems, replace(_assemble(parts, where, config), problems=tuple(limited(problems)))


def from_frame(frame: pd.DataFrame, config: DataConfig | None = None, *, name: str = "asset") -> Bars:
    """Bars of a DataFrame: backtesting.py, yfinance (also many tickers), lower-case names, or FinRL's long format."""
    return load(frame, config, name=name)


def from_ccxt(rows: Sequence[Sequence[float]], config: DataConfig | None = None, *, name: str = "asset") -> Bars:
    """Bars of ccxt's fetch_ohlcv rows: [epoch ms, open, high, low, close, volume]."""
    return load(rows, config, name=name)


def _tables(source: Source, renamed: Mapping[str, str], asset: str) -> tuple[str, list[tuple[str, Table]]]:
    """Name of the source, and (asset, table) for each of its parts."""
    if isinstance(source, pd.DataFrame):
        rows = np.arange(1, len(source) + 1, dtype=np.int64)
        return "DataFrame", [(asset, _not_empty(Table(source, rows, "DataFrame")))]
    if not isinstance(source, str | Path):
        frame = pd.DataFrame([list(row)[:6] for row in source], columns=pd.Index(CCXT_COLUMNS))
        rows = np.arange(1, len(frame) + 1, dtype=np.int64)
        return "ccxt rows", [(asset, _not_empty(Table(frame, rows, "ccxt rows")))]
    if isinstance(source, str) and source.startswith(_SAMPLE):
        name = source.removeprefix(_SAMPLE)
        if name not in samples.PACKAGED:
            known = (*samples.PACKAGED, *samples.SYNTHETIC)
            raise DataError(f"no sample {name!r}; {did_you_mean(name, known)}")
        return source, [(name, read_file(samples.PACKAGED[name](), renamed))]
    path = at_home(source)
    if not path.is_dir():
        return str(path), read_files(path, renamed)
    files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES) and not file.name.startswith("."))
    if not files:
        raise DataError(f"{path}: no bars in this directory; expected files ending in {', '.join(SUFFIXES)}")
    pairs = (pair for file in files for pair in read_files(file, renamed))
    return str(path), list(within_bounds(pairs, path, renamed))


def _told_once(problems: list[Problem]) -> list[Problem]:
    """A note that is the same for many files of a directory is told of the first."""
    same = Counter((problem.kind, problem.message) for problem in problems if problem.severity == "note")
    told: list[Problem] = []
    for problem in problems:
        times = same.pop((problem.kind, problem.message), 0) if problem.severity == "note" else 1
        if times > 1:
            problem = replace(problem, where=f"{problem.where} and {times - 1} more")
        if times:
            told.append(problem)
    return told


def _left_out(tables: list[tuple[str, Table]], path: str, renamed: Mapping[str, str]) -> list[Problem]:
    """Of a directory or an archive: files without any column of bars are something else, which is said. One that cannot
    be read may be an asset that would be missed, and stays to be an error."""
    others = [table for _, table in tables if not holds_bars(table, renamed)]
    if len(others) == len(tables):
        return []  # then what is wrong with them is the news
    others = [table for table in others if not any(problem.kind in UNREADABLE for problem in table.problems)]
    for table in others:
        tables[:] = [(asset, kept) for asset, kept in tables if kept is not table]
    return [Problem(None, "ignored", f"{Path(table.where).name} holds no bars", "note", path) for table in others]


def _not_empty(table: Table) -> Table:
    if table.frame.empty:
        table.problems.append(Problem(None, "empty", "there is no bar in it", where=table.where))
    return table


def _read(tables: list[tuple[str, Table]], where: str, config: DataConfig) -> tuple[list[Columns], list[Problem]]:
    parts: list[Columns] = []
    problems: list[Problem] = []
    for asset, table in tables:
        columns = read_columns(table, asset=asset, time_zone=config.time_zone, renamed=config.columns)
        if columns is None:
            problems += table.problems
        else:
            _apply(columns, config)
            problems += examine(columns, allow_gaps=config.allow_gaps)
            parts.append(columns)
    problems += _name_continued(parts, where)
    problems += examine_joined(parts, where, allow_gaps=config.allow_gaps, known=problems)
    return parts, problems


def _name_continued(parts: list[Columns], where: str) -> list[Problem]:
    """BTCUSDT-1h-2024-01 and BTCUSDT-1h-2024-02, where one ends before the other begins, are months of one asset."""
    families: dict[str, list[Columns]] = {}
    for part in parts:
        if len(names := set(part.asset.tolist())) == 1:
            families.setdefault(_DATES_AT_THE_END.sub("", names.pop()) or Path(where).name, []).append(part)
    said = []
    for name, family in families.items():
        family.sort(key=lambda part: int(part.time.min()))
        if len(family) < 2 or any(a.time.max() >= b.time.min() for a, b in pairwise(family)):
            continue
        if len({str(part.asset[0]) for part in family}) == len(family):  # named by their files
            text = f"{len(family)} files that follow each other in time are one asset, {name}"
            said.append(Problem(None, "read as", text, "note", where))
            for part in family:
                part.asset = np.full(len(part.asset), name)
    return said


def _assemble(parts: list[Columns], name: str, config: DataConfig) -> Bars:
    """One panel on the union of all times."""
    for part in parts:
        if config.adjust and "adj_close" in part.values:
            _adjust(part.values)
        if config.stamp == "close":
            part.time = _opening_times(part)
    # np.unique hashes whole numbers, which takes ten times as long as sorting times that are nearly sorted.
    time = np.sort(np.concatenate([part.time for part in parts]), kind="stable")
    time = time[np.diff(time, prepend=time[:1] - 1) != 0]
    assets = tuple(dict.fromkeys(str(asset) for part in parts for asset in dict.fromkeys(part.asset)))
    names = _renamed(assets, config.assets, name)
    extra = sorted({column for part in parts for column in part.values if column.startswith(USER_FEATURE)})
    cells, n_bars = len(time) * len(assets), sum(len(part.time) for part in parts)
    if cells > _SPARSEST * n_bars + _ANY_PANEL:
        raise DataError(
            f"{name}: {len(assets):,} assets have {n_bars:,} bars at {len(time):,} different times, so that the table "
            f"of all of them would have {cells:,} places, nearly all empty; give assets that trade at the same times"
        )
    panel = {column: np.full((len(time), len(assets)), np.nan) for column in (*PRICES, "volume", *extra)}
    index = {asset: i for i, asset in enumerate(assets)}
    for part in parts:
        row = np.searchsorted(time, part.time)
        found, inverse = np.unique(part.asset, return_inverse=True)
        column = np.array([index[str(asset)] for asset in found])[inverse]
        for key, values in part.values.items():
            if key in panel:
                panel[key][row, column] = values
    bars = Bars(
        time.astype("datetime64[ns]"),
        assets,
        open=panel["open"],
        high=panel["high"],
        low=panel["low"],
        close=panel["close"],
        volume=panel["volume"],
        extra={key: panel[key] for key in extra},
        source=name,
    )
    kept = bars if len(names) == len(assets) else bars.chosen(tuple(names))
    return replace(kept, assets=tuple(names.values()))


def _renamed(assets: tuple[str, ...], wanted: Mapping[str, str | None], source: str) -> dict[str, str]:
    """Name in the file -> name to use, without those that are left out."""
    for name in wanted:
        if name not in assets:
            raise DataError(f"{source}: data.assets: no asset {name!r} in it; {did_you_mean(name, assets)}")
    names = {name: str(wanted.get(name, name)) for name in assets if wanted.get(name, name) is not None}
    if not names:
        raise DataError(f"{source}: data.assets leaves every asset out; keep at least one of {', '.join(assets)}")
    return names


def _apply(columns: Columns, config: DataConfig) -> None:
    """What other columns know about the prices: an adjusted close, or else splits and dividends."""
    if config.adjust and "adj_close" not in columns.values:
        apply_actions(columns, config.dividends)
    for name in ACTIONS:
        columns.values.pop(name, None)


def _adjust(values: dict[str, FloatArray]) -> None:
    factor = values["adj_close"] / values["close"]
    for name in PRICES:
        values[name] = values[name] * factor
    if "volume" in values:
        values["volume"] = values["volume"] / factor


def _opening_times(part: Columns) -> NDArray[np.int64]:
    """A stamp of the close, less the length of a bar: the spacing that occurs most often."""
    sizes, counts = np.unique(np.diff(np.unique(part.time)), return_counts=True)
    if len(sizes) == 0:
        raise DataError(f"{part.where}: data.stamp: close needs at least two bars to know how long a bar is")
    return np.asarray(part.time - sizes[counts.argmax()], dtype=np.int64)
