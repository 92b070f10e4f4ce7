"""Files of bars that are damaged, absurd or made to do harm: a problem with its line, in bounded memory."""

import gzip
import io
import json
import zipfile

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from leeward.errors import DataError
from leeward.market import check, load

HEADER = "time,open,high,low,close,volume\n"


def bars(times, **columns):
    frame = pd.DataFrame({"time": times} | dict.fromkeys(("open", "high", "low", "close"), 10.0) | columns)
    return frame.assign(volume=1.0)


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", ["3000-01-01", "1600-01-01", "9999-12-31 10:00", "1677-12-31"])
def test_a_year_that_nanoseconds_do_not_reach_is_no_date(time, tmp_path):
    text = bars(["2020-01-01", time]).to_csv(index=False)
    assert "is no date" in str(check(written(tmp_path / "a.csv", text))[0])
    frame = bars(np.array(["2020-01-01", time.split()[0]], dtype="datetime64[s]"))
    assert "is not in 1678 to 2261" in str(check(frame)[0])
    assert "is not in 1678 to 2261" in str(check(frame.assign(time=frame["time"].dt.tz_localize("UTC")))[0])


@pytest.mark.parametrize("number", [32_503_680_000, 32_503_680_000_000, -12_000_000_000])  # 3000-01-01, and 1589
def test_an_epoch_that_nanoseconds_do_not_reach_is_no_time(number):
    assert "is no epoch time" in str(check(bars([1_600_000_000, number]))[0])


@pytest.mark.parametrize(
    ("numbers", "second"),
    [
        ([202401020930, 202401020931], "2024-01-02T09:31:00"),
        ([20240102093000, 20240102093105], "2024-01-02T09:31:05"),
        ([1_704_187_800_000, 1_704_187_860_000], "2024-01-02T09:31:00"),
        ([202_400_000_000, 202_486_400_000], "1976-06-01T14:13:20"),  # ms: month 00 is no date
    ],
)
def test_a_date_written_as_a_number_is_told_from_an_epoch(numbers, second, tmp_path):
    for source in (bars(numbers), written(tmp_path / "a.csv", bars(numbers).to_csv(index=False))):
        assert str(load(source).time[1].astype("datetime64[s]")) == second


def test_zones_that_are_mixed_are_named_with_short_offsets_too():
    found = check(bars(["2024-01-02 10:00:00+05", "2024-01-02 11:00:00+00", "2024-01-02 12:00:00+05"]))
    assert "mixed time zones" in {problem.kind for problem in found}


# --- files ------------------------------------------------------------------------------------------------------------


def packed(text):
    return gzip.compress(text.encode())


def zipped(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


LONG = HEADER + "2024-01-02,10,11,9,10," + "5" * 140_000 + "\n2024-01-03,,,,,\n"
GOOD = HEADER + "".join(f"2024-01-{day:02d},10,11,9,10,5\n" for day in range(1, 29))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"\xef\xbb\xbf", "the file is empty"),
        ("a.csv", b"\r", "the file is empty"),
        (
            "a.csv",
            HEADER + "2024-01-02,10,11,9,10," + "5" * 140_000 + "\n2024-01-03,,,,,\n",
            "field larger than field limit",
        ),
        ("a.csv.gz", packed(GOOD)[:-9], "not a whole gzip file"),
        ("a.csv.gz", packed(GOOD)[:40] + b"\x55" * 60, "not a whole gzip file"),
        ("a.csv.gz", b"no gzip at all", "not a whole gzip file"),
        ("a.csv.gz", gzip.compress(b"0" * 30_000_000), "expands to more than 100 times its size"),
        ("a.json", b"[" * 100_000, "nested deeper than any list of bars is"),
        (
            "a.zip",
            zipped("b.zip", zipped("c.csv", GOOD.encode())),
            "no bars in this archive; expected files ending in .csv",
        ),
        ("a.csv", HEADER + "2024-01-02" + ",1" * 10_001 + "\n", "a line has 10,001 cells"),
    ],
    ids=[
        "bom",
        "return",
        "long cell",
        "cut gzip",
        "broken gzip",
        "no gzip",
        "gzip bomb",
        "deep",
        "zip in a zip",
        "wide",
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem(name, content, words, tmp_path):
    source = written(tmp_path / name, content)
    assert words in str(check(source)[0])
    with pytest.raises(DataError, match=words):
        load(source)


def test_lines_may_end_in_a_lone_return_and_gzip_is_read(tmp_path):
    expected = load(written(tmp_path / "b.csv", GOOD)).fingerprint
    with_gap = GOOD.replace("\n", "\r").replace("2024-01-05,10", "2024-01-05,10.0")
    assert len(load(written(tmp_path / "a.csv", with_gap))) == 28
    assert load(written(tmp_path / "b.csv.gz", packed(GOOD))).close.shape == (28, 1)
    assert expected


def test_parquet_without_rows_and_with_rows_it_cannot_hold_is_a_problem(tmp_path):
    frame = bars(pd.to_datetime(["2024-01-02"])).iloc[:0]
    frame.to_parquet(tmp_path / "a.parquet")
    assert "there is no bar in it" in str(check(str(tmp_path / "a.parquet"))[0])
    many = pd.DataFrame({name: np.zeros(12_000_000) for name in ("open", "close")})
    many.to_parquet(tmp_path / "b.parquet")
    assert (tmp_path / "b.parquet").stat().st_size < 1_000_000
    assert "says that it has 12,000,000 rows" in str(check(str(tmp_path / "b.parquet"))[0])
    (tmp_path / "c.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    assert "not a readable Parquet or Feather file" in str(check(str(tmp_path / "c.parquet"))[0])


def test_a_panel_that_would_be_nearly_empty_is_refused():
    times = pd.date_range("2000-01-01", periods=3000, freq="D")
    with pytest.raises(DataError, match=r"3,000 assets have 3,000 bars at 3,000 different times"):
        load(bars(times, tic=[f"T{i}" for i in range(3000)]))


@pytest.mark.parametrize("name", ["x" * 65, "A\x1b[31mB", "two\nlines"])
def test_a_name_that_is_none_is_named(name):
    found = check(bars(["2024-01-02", "2024-01-03"], tic=["good", name]))
    assert found[0].row == 2 and found[0].kind == "asset name"


def test_a_text_that_is_no_csv_is_read_in_bounded_time():
    assert check(pd.read_csv(io.StringIO("a,b\n1,2\n")))[0].kind == "missing column"


def test_parquet_whose_notes_for_pandas_are_damaged_is_a_problem(tmp_path):
    bars(["2024-01-02", "2024-01-03"]).to_parquet(tmp_path / "a.parquet", compression=None)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    notes = table.schema.metadata[b"pandas"].replace(b'"pandas_type"', b'"pandas_tipe"')
    pyarrow.parquet.write_table(table.replace_schema_metadata({b"pandas": notes}), tmp_path / "b.parquet")
    assert "not a readable Parquet or Feather file" in str(check(str(tmp_path / "b.parquet"))[0])


def test_a_number_of_four_hundred_digits_is_no_price(tmp_path):
    rows = [{"time": f"2024-01-{day:02d}", "open": 10, "high": 11, "low": 9, "close": 10} for day in range(1, 29)]
    rows[3]["high"] = 10**400
    found = [str(problem) for problem in check(written(tmp_path / "a.json", json.dumps(rows)))]
    assert any("row 4" in problem and "high" in problem for problem in found), found


def test_lines_that_end_in_a_lone_carriage_return_are_many_and_not_one(tmp_path):
    times = pd.date_range("2010-01-01", periods=3000, freq="D").astype(str)
    text = HEADER + "".join(f"{time},10,11,9,10,5\n" for time in times)
    assert len(load(written(tmp_path / "a.csv", text.replace("\n", "\r")))) == 3000
