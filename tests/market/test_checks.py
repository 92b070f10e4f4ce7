"""What `leeward data check` finds: one problem per fault, with its row."""

import gzip

import numpy as np
import pandas as pd
import pytest

from leeward.config.trading import DataConfig
from leeward.errors import DataError
from leeward.market import check, load

HEADER = "date,open,high,low,close,volume"


def days(n, start="2024-01-01"):
    """n good lines, weekdays only."""
    times = np.busday_offset(start, np.arange(n), roll="forward")
    return [f"{t},{10 + i % 3}.5,{12 + i % 3},{9 + i % 3},{11 + i % 3},{1000 + i}" for i, t in enumerate(times)]


def write(tmp_path, lines, header=HEADER, name="bars.csv"):
    path = tmp_path / name
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def edit(row, column, value):
    """Good lines with one cell changed; `row` is the line in the file (header = 1)."""
    lines = days(30)
    cells = lines[row - 2].split(",")
    cells[column] = value
    lines[row - 2] = ",".join(cells)
    return lines


def found(path, **config):
    return {(p.kind, p.row, p.severity) for p in check(path, DataConfig(**config))}


def test_good_bars_have_no_problem(tmp_path):
    assert check(write(tmp_path, days(30))) == []


ONE_CELL = {
    "missing value": (5, 4, ""),
    "price not positive": (6, 1, "0"),
    "infinite price": (8, 3, "inf"),
    "negative volume": (9, 5, "-3"),
    "high below low": (10, 2, "1"),
    "impossible date": (11, 0, "2024-02-30"),
    "text in number": (12, 4, "n.a. today"),
}


@pytest.mark.parametrize("kind", ONE_CELL)
def test_a_wrong_cell_is_found_on_its_row(tmp_path, kind):
    row, column, value = ONE_CELL[kind]
    path = write(tmp_path, edit(row, column, value))
    assert (kind, row, "error") in found(path)
    with pytest.raises(DataError, match=rf"bars.csv row {row}: {kind}"):
        load(path)


def test_a_negative_price_is_found(tmp_path):
    assert ("price not positive", 7, "error") in found(write(tmp_path, edit(7, 4, "-5")))


def test_duplicates_and_disorder(tmp_path):
    lines = days(30)
    assert found(write(tmp_path, [*lines[:10], lines[9], *lines[10:]])) == {("duplicate time", 12, "error")}
    lines[4], lines[5] = lines[5], lines[4]
    assert found(write(tmp_path, lines)) == {("unsorted time", 7, "error")}


def test_a_gap_is_more_than_three_usual_weekends(tmp_path):
    # Weekends make the spacing of 3 days usual; 9 days is no gap, 10 days is one.
    lines = days(30)
    nine = [*lines, *days(30, "2024-02-18")]  # last good day is Friday 2024-02-09, next Monday 2024-02-19: 10 days
    assert found(write(tmp_path, nine)) == {("gap", 32, "error")}
    assert found(write(tmp_path, nine), allow_gaps=True) == {("gap", 32, "warning")}
    assert found(write(tmp_path, [*lines, *days(30, "2024-02-13")])) == set()
    assert len(load(write(tmp_path, nine), DataConfig(allow_gaps=True))) == 60


def minutes(days, *, hours=range(24), closed=()):
    """A line per quarter of an hour in the given hours of the given days."""
    stamps = [
        np.datetime64(str(day)) + np.timedelta64(60 * hour + quarter, "m")
        for day in days
        if day not in closed
        for hour in hours
        for quarter in (0, 15, 30, 45)
    ]
    return [f"{stamp},10,12,9,11,100" for stamp in stamps]


MONTH = np.arange("2024-01-08", "2024-02-03", dtype="datetime64[D]")
WEEKDAYS = [day for day in MONTH if np.is_busday(day)]
SESSION = range(14, 21)


def test_weekends_and_a_holiday_of_a_month_of_minutes_are_no_gaps(tmp_path):
    assert found(write(tmp_path, minutes(WEEKDAYS, hours=SESSION))) == set()
    assert found(write(tmp_path, minutes(WEEKDAYS))) == set()
    holiday = np.datetime64("2024-01-15")  # a Monday: closed from Friday night to Tuesday
    assert found(write(tmp_path, minutes(WEEKDAYS, hours=SESSION, closed=[holiday]))) == set()
    assert found(write(tmp_path, minutes(WEEKDAYS[:8]))) == set(), "one weekend, and no other week to learn it from"


def test_a_bar_or_two_that_are_missing_are_no_gap(tmp_path):
    lines = minutes(MONTH)
    del lines[500:502]  # 45 minutes where 15 are usual
    assert found(write(tmp_path, lines)) == set()
    del lines[900:903]  # an hour
    assert {p[0] for p in found(write(tmp_path, lines))} == {"gap"}


def test_days_that_are_missing_among_minutes_are_a_gap(tmp_path):
    lost = [np.datetime64("2024-01-16"), np.datetime64("2024-01-17")]  # Tuesday and Wednesday
    assert {p[0] for p in found(write(tmp_path, minutes(WEEKDAYS, closed=lost)))} == {"gap"}
    assert {p[0] for p in found(write(tmp_path, minutes(WEEKDAYS[:5], closed=WEEKDAYS[2:4])))} == {"gap"}
    assert {p[0] for p in found(write(tmp_path, minutes(MONTH, closed=MONTH[9:11])))} == {"gap"}, "it never closes"


def test_mixed_time_zones(tmp_path):
    lines = [line.replace(",", "T00:00:00+00:00,", 1) for line in days(30)]
    assert found(write(tmp_path, lines)) == set()
    lines[7] = lines[7].replace("+00:00", "+05:00")
    assert found(write(tmp_path, lines)) == {("mixed time zones", 9, "error"), ("mixed time zones", 10, "error")}
    lines[7] = lines[7].replace("+05:00", "")
    assert ("mixed time zones", 9, "error") in found(write(tmp_path, lines))


def test_daylight_saving_is_no_mixture(tmp_path):
    times = np.arange("2024-01-01", "2024-12-01", dtype="datetime64[D]")
    summer = (times >= np.datetime64("2024-03-10")) & (times < np.datetime64("2024-11-03"))
    lines = [f"{t} 00:00:00{'-04:00' if s else '-05:00'},10,12,9,11,100" for t, s in zip(times, summer, strict=True)]
    path = write(tmp_path, lines)
    assert check(path) == []
    bars = load(path)
    assert str(bars.time[0]) == "2024-01-01T05:00:00.000000000"
    assert str(bars.time[100]) == "2024-04-10T04:00:00.000000000"


def test_missing_columns_and_ragged_rows(tmp_path):
    problems = check(write(tmp_path, ["2024-01-01,1,2"], header="date,open,low"))
    assert [(p.kind, p.row) for p in problems] == [("missing column", None)]
    assert "no column high, close" in problems[0].message
    lines = days(30)
    lines[3] += ",7"
    lines[6] = lines[6].rsplit(",", 1)[0]
    assert {("ragged row", 5, "error"), ("ragged row", 8, "error")} <= found(write(tmp_path, lines))


FILES = {
    "empty": b"",
    "binary": b"\x89PNG\r\n\x1a\n\0\0\0",
    "html": b"<!DOCTYPE html>\n<html><body>no bars</body></html>\n",
    "header only": HEADER.encode() + b"\n",
}


@pytest.mark.parametrize("kind", FILES)
def test_files_that_hold_no_bars(tmp_path, kind):
    path = tmp_path / "bars.csv"
    path.write_bytes(FILES[kind])
    assert [(p.kind, p.row) for p in check(path)] == [(kind, None)]
    with pytest.raises(DataError, match=kind):
        load(path)


def test_other_files_that_are_not_what_they_say(tmp_path):
    for name, content in (("x.csv.gz", b"date,open"), ("x.parquet", b"PAR0"), ("x.csv", "prix;café".encode("latin-1"))):
        (tmp_path / name).write_bytes(content)
        assert [p.kind for p in check(tmp_path / name)] == ["binary"], name
    with pytest.raises(DataError, match="no such file"):
        check(tmp_path / "absent.csv")


def test_at_most_twenty_of_a_kind_and_then_a_count(tmp_path):
    lines = [line.rsplit(",", 1)[0] + ",-1" for line in days(50)]
    problems = check(write(tmp_path, lines))
    assert len(problems) == 21
    assert problems[-1].row is None and problems[-1].message == "and 30 more of this kind"
    assert str(problems[0]).endswith("row 2: error: negative volume: volume must not be negative, got -1")
    with pytest.raises(DataError, match=r"row 2: negative volume: .* \(and 49 more: leeward data check .*bars\.csv\)"):
        load(tmp_path / "bars.csv")
    with pytest.raises(DataError, match=r"row 1: .* \(and 49 more: leeward\.market\.check\)") as caught:
        load(pd.read_csv(tmp_path / "bars.csv"))
    assert [note.split(":")[1] for note in caught.value.__notes__] == [" negative volume"] * 4, (
        "of the rows that follow"
    )


def test_an_unadjusted_split_is_a_warning(tmp_path):
    lines = days(30)
    times = [line.split(",")[0] for line in lines]
    prices = [400.0] * 15 + [100.0] * 15
    path = write(tmp_path, [f"{t},{p},{p + 1},{p - 1},{p},10" for t, p in zip(times, prices, strict=True)])
    assert found(path) == {("unadjusted split", 17, "warning")}
    adjusted = [f"{t},{p},{p + 1},{p - 1},{p},10,100" for t, p in zip(times, prices, strict=True)]
    assert found(write(tmp_path, adjusted, HEADER + ",Adj Close")) == set()


def test_nothing_is_written_by_a_check(tmp_path):
    path = write(tmp_path, edit(6, 1, "0"))
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    check(path)
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["nasdaq", "eurusd_1h", "aapl", "synthetic", "control"])
def test_the_samples_pass(name):
    assert check(f"sample:{name}") == []


def test_an_unknown_sample_is_named():
    with pytest.raises(DataError, match="no sample 'nasdq'; did you mean 'nasdaq'"):
        load("sample:nasdq")


def test_a_gzipped_file_is_checked_like_a_plain_one(tmp_path):
    path = tmp_path / "bars.csv.gz"
    path.write_bytes(gzip.compress("\n".join([HEADER, *edit(6, 1, "0")]).encode()))
    assert ("price not positive", 6, "error") in found(path)


def parts(tmp_path, *cuts):
    """Days as files of one asset, one per (first, last) row."""
    lines = days(60)
    for number, (first, last) in enumerate(cuts, 1):
        write(tmp_path, lines[first:last], name=f"A-2024-{number:02d}.csv")


def test_a_file_that_is_missing_among_those_of_an_asset_is_a_gap(tmp_path):
    parts(tmp_path, (0, 20), (20, 40), (40, 60))
    assert [p for p in check(tmp_path) if p.severity != "note"] == []
    (tmp_path / "A-2024-02.csv").unlink()
    (gap,) = [p for p in check(tmp_path) if p.severity == "error"]
    assert gap.kind == "gap" and gap.where == f"{tmp_path}: A"


def test_a_time_that_stands_in_two_files_of_an_asset_is_a_duplicate(tmp_path):
    rows = days(40)
    for name, part in (("first", rows[:21]), ("second", rows[20:])):
        write(tmp_path, [f"{line},X" for line in part], header=f"{HEADER},symbol", name=f"{name}.csv")
    (double,) = [p for p in check(tmp_path) if p.severity == "error"]
    assert double.kind == "duplicate time" and double.where == f"{tmp_path}: X"


def test_files_that_overlap_are_assets_of_their_own(tmp_path):
    """Contracts of a future end in a date too, and trade side by side."""
    parts(tmp_path, (0, 40), (20, 60))
    assert load(tmp_path).assets == ("A-2024-01", "A-2024-02")


def test_a_jump_that_no_split_explains_asks_for_the_unit(tmp_path):
    rows = days(20)
    cents = [
        ",".join([line.split(",")[0], *(str(float(cell) * 1000) for cell in line.split(",")[1:])]) for line in rows
    ]
    (jump,) = [p for p in check(write(tmp_path, rows[:10] + cents[10:])) if p.kind == "jump"]
    assert jump.severity == "warning" and "in the same unit" in jump.message


def test_daylight_saving_is_no_mixture_where_assets_stand_one_after_another():
    time = pd.date_range("2023-06-01", periods=400, freq="D", tz="America/New_York")
    part = pd.DataFrame({"time": [stamp.isoformat() for stamp in time], "open": 10.0, "high": 11.0, "low": 9.0})
    both = pd.concat([part.assign(close=10.5, tic=name) for name in ("A", "B")], ignore_index=True)
    assert [p for p in check(both) if p.severity == "error"] == []


def test_a_note_that_is_the_same_for_many_files_is_told_once(tmp_path):
    for name in ("A", "B", "C"):
        write(tmp_path, days(30)[::-1], name=f"{name}.csv")
    assert [str(p) for p in check(tmp_path)] == [
        f"{tmp_path / 'A.csv'} and 2 more: note: read as: newest bar first; turned round"
    ]
