"""The files of a backtest (metrics.json, equity.csv, positions.csv, trades.csv, outlook.npz) and the way back."""

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError

from leeward.backtest.metrics import Metrics
from leeward.backtest.result import COSTS, BacktestResult, Outlook
from leeward.backtest.robustness import FILE as ROBUSTNESS
from leeward.backtest.strategies import AGENT
from leeward.backtest.trades import Trade
from leeward.durable import as_cell, from_cell, read_arrays, write_atomically
from leeward.errors import RunDirectoryError, one_line

__all__ = ["StoredBacktest", "write_backtest", "read_backtest"]

_TEXT = ("asset", "side")
_OUTLOOK = ("levels", "weights", "quantiles", "var", "cvar", "mean")


@dataclass(frozen=True, eq=False)
class StoredBacktest:
    """A backtest as read from its directory. Frames are indexed by UTC time where they have one row per bar."""

    metrics: Metrics
    equity: pd.DataFrame  # index time (n + 1); a column per strategy, then the agent's step_return, costs, turnover …
    positions: pd.DataFrame  # time, asset, target, weight, units, fill, close; n · A rows
    trades: pd.DataFrame  # fields of Trade
    outlook: Outlook | None
    outlook_step: Outlook | None

    @property
    def time(self) -> NDArray[np.datetime64]:
        """(n + 1,) UTC."""
        return pd.DatetimeIndex(self.equity.index).tz_convert(None).to_numpy()

    def returns(self, strategy: str) -> NDArray[np.float64]:
        """(n,) simple returns."""
        equity = self.equity[strategy].to_numpy()
        return np.asarray(equity[1:] / equity[:-1] - 1.0)


def write_backtest(
    folder: Path, agent: BacktestResult, baselines: Mapping[str, BacktestResult], metrics: Metrics
) -> None:
    """Write all files; metrics.json last, so that a directory that has it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_csv(_equity_frame(agent, baselines), folder / "equity.csv")
    _write_csv(_positions_frame(agent), folder / "positions.csv")
    _write_csv(_trades_frame(agent), folder / "trades.csv")
    arrays: dict[str, NDArray[np.float64]] = {}
    for prefix, outlook in (("", agent.outlook), ("step_", agent.outlook_step)):
        if outlook is not None:
            arrays |= {prefix + name: getattr(outlook, name) for name in _OUTLOOK}
    if arrays:
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **arrays)
        write_atomically(folder / "outlook.npz", packed.getvalue())
    else:
        (folder / "outlook.npz").unlink(missing_ok=True)  # of an earlier backtest into the same directory
    (folder / ROBUSTNESS).unlink(missing_ok=True)  # likewise: it was another policy's
    write_atomically(folder / "metrics.json", metrics.model_dump_json(indent=1) + "\n")


def read_backtest(folder: Path) -> StoredBacktest:
    """Read what `write_backtest` wrote; numbers come back bit for bit."""
    path = folder / "metrics.json"
    if not path.is_file():
        raise RunDirectoryError(
            f"{folder}: no metrics.json here, so no finished backtest; run `leeward backtest` first"
        )
    try:
        metrics = Metrics.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise RunDirectoryError(f"{path}: not the metrics of a backtest: {error.errors()[0]['msg']}") from None
    arrays = _read_arrays(folder / "outlook.npz")
    equity = _read_csv(folder / "equity.csv", ("time",), ("time", *metrics.strategies)).set_index("time")
    positions = _read_csv(folder / "positions.csv", ("time",), ("time", "asset", "weight", "close"))
    for name, rows, expected in (
        ("equity.csv", len(equity), metrics.bars + 1),
        ("positions.csv", len(positions), metrics.bars * len(metrics.assets)),
    ):
        if rows != expected:
            raise RunDirectoryError(
                f"{folder / name}: damaged ({rows} rows, metrics.json says {expected}); run `leeward backtest` again"
            )
    return StoredBacktest(
        metrics=metrics,
        equity=equity,
        positions=positions,
        trades=_read_csv(folder / "trades.csv", ("entry_time", "exit_time"), tuple(Trade.__dataclass_fields__)),
        outlook=_outlook(arrays, ""),
        outlook_step=_outlook(arrays, "step_"),
    )


def _read_arrays(path: Path) -> Mapping[str, NDArray[np.float64]]:
    if not path.is_file():
        return {}
    try:
        found = read_arrays(path)
        ahead = {f"step_{name}" for name in _OUTLOOK}
        whole = found.keys() in (set(_OUTLOOK), ahead.union(_OUTLOOK))
        if not whole or any(each.dtype != np.float64 for each in found.values()):
            raise ValueError(f"it holds {', '.join(found)}")
        return found
    except ValueError as error:
        raise RunDirectoryError(f"{path}: damaged ({error}); run `leeward backtest` again") from None


def _equity_frame(agent: BacktestResult, baselines: Mapping[str, BacktestResult]) -> pd.DataFrame:
    def from_second_row(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([[np.nan], values])

    columns: dict[str, object] = {"time": _stamps(agent.time), AGENT: agent.equity}
    columns |= {name: result.equity for name, result in baselines.items()}
    columns["step_return"] = from_second_row(agent.step_returns)
    columns["turnover"] = from_second_row(agent.turnover)
    columns["exposure"] = from_second_row(agent.exposure)
    columns |= {f"cost_{name}": from_second_row(agent.costs[name]) for name in COSTS}
    return pd.DataFrame(columns)


def _positions_frame(agent: BacktestResult) -> pd.DataFrame:
    n, a = agent.targets.shape
    columns: dict[str, object] = {"time": np.repeat(_stamps(agent.time[1:]), a), "asset": list(agent.assets) * n}
    for name, values in (
        ("target", agent.targets),
        ("weight", agent.weights),
        ("units", agent.units),
        ("fill", agent.fills),
        ("close", agent.closes),
    ):
        columns[name] = values.ravel()
    return pd.DataFrame(columns)


def _trades_frame(agent: BacktestResult) -> pd.DataFrame:
    frame = pd.DataFrame([asdict(trade) for trade in agent.trades], columns=list(Trade.__dataclass_fields__))
    for name in ("entry_time", "exit_time"):
        frame[name] = _stamps(frame[name].to_numpy(dtype="datetime64[ns]"))
    frame["is_open"] = frame["is_open"].astype(int)
    return frame


def _stamps(time: NDArray[np.datetime64]) -> NDArray[np.str_]:
    return np.datetime_as_string(time, unit="s", timezone="UTC")


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    for name in _TEXT:
        if name in frame:
            frame[name] = [as_cell(text) for text in frame[name]]
    write_atomically(path, frame.rename(columns=as_cell).to_csv(index=False, lineterminator="\n"))


def _read_csv(path: Path, times: tuple[str, ...], expected: tuple[str, ...]) -> pd.DataFrame:
    if not path.is_file():
        raise RunDirectoryError(f"{path}: missing beside metrics.json; run `leeward backtest` again")
    # As text first: Python's float() is exact, the default parser of some pandas versions is off by one bit.
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False).rename(columns=from_cell)
        lacking = [name for name in expected if name not in frame]
        if lacking:
            raise ValueError(f"no column {', '.join(lacking)}")
        return _typed(frame, times)
    except (ValueError, OverflowError, csv.Error) as error:
        raise RunDirectoryError(f"{path}: damaged ({one_line(error)}); run `leeward backtest` again") from None


def _typed(frame: pd.DataFrame, times: tuple[str, ...]) -> pd.DataFrame:
    columns: dict[str, object] = {}
    for name in frame.columns:
        if name in times:
            columns[name] = pd.to_datetime(frame[name], utc=True)
        elif name in _TEXT:
            columns[name] = [from_cell(cell) for cell in frame[name]]
        else:
            columns[name] = np.array([float(cell) if cell else np.nan for cell in frame[name]])
    return pd.DataFrame(columns)


def _outlook(arrays: Mapping[str, NDArray[np.float64]], prefix: str) -> Outlook | None:
    if prefix + "levels" not in arrays:
        return None
    return Outlook(**{name: arrays[prefix + name] for name in _OUTLOOK})
