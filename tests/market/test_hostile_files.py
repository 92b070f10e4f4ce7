"""Files of bars that are damaged, absurd or made to do harm: a problem with its line, in bounded memory."""

import gzip
import io
import json
import os
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from leeward.config.trading import DataConfig
from leeward.errors import DataError
from leeward.market import arrow_files, check, load

HEADER = "time,open,high,low,close,volume\n"


def bars(times, **columns):
    frame = pd.DataFrame({"time": times} | dict.fromkeys(("open", "high", "low", "close"), 10.0) | columns)
    return frame.assign(volume=1.0)


def daily(**columns):
    return bars(pd.date_range("2020-01-01", periods=40).astype(str)).assign(**columns)


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
        ([2024010209, 2024010210], "2024-01-02T10:00:00"),
        ([2_019_686_400, 2_019_772_800], "2034-01-02T00:00:00"),  # seconds: month 96 is no date
        ([202401020930, 202401020931], "2024-01-02T09:31:00"),
        ([20240102093000, 20240102093105], "2024-01-02T09:31:05"),
        ([1_704_187_800_000, 1_704_187_860_000], "2024-01-02T09:31:00"),
        ([202_400_000_000, 202_486_400_000], "1976-06-01T14:13:20"),  # ms: month 00 is no date
    ],
)
def test_a_date_written_as_a_number_is_told_from_an_epoch(numbers, second, tmp_path):
    for source in (bars(numbers), written(tmp_path / "a.csv", bars(numbers).to_csv(index=False))):
        assert str(load(source).time[1].astype("datetime64[s]")) == second


@pytest.mark.parametrize(
    ("price", "kind"),
    [(np.inf, "infinite price"), (1e308, "absurd price"), (1e-320, "absurd price"), (0.0, "price not positive")],
)
@pytest.mark.parametrize("adjusted", [{}, {"adj_close": 10.0}])
def test_the_most_extreme_prices_are_named_and_nothing_else_is_said(price, kind, adjusted):
    """Warnings are errors here: NumPy's, of an overflow, would stand on the terminal with a line of our code."""
    frame = bars(["2024-01-02", "2024-01-03", "2024-01-04"], **adjusted)
    frame.loc[1, ["open", "high", "low", "close"]] = price
    assert kind in {problem.kind for problem in check(frame)}


def test_an_epoch_beyond_all_numbers_is_no_time():
    assert "is no epoch time" in str(check(bars([1.6e9, 1e308]))[0])


def test_a_cell_without_end_is_quoted_in_part(tmp_path):
    long = "1" * 140_000
    for line in (f"2024-01-03,{long},1,1,1,1", f"{long}x,1,1,1,1,1"):
        found = check(written(tmp_path / "a.csv", f"{HEADER}2024-01-02,1,1,1,1,1\n{line}\n"))
        assert found and max(len(str(problem)) for problem in found) < 500


def test_zones_that_are_mixed_are_named_with_short_offsets_too():
    found = check(bars(["2024-01-02 10:00:00+05", "2024-01-02 11:00:00+00", "2024-01-02 12:00:00+05"]))
    assert "mixed time zones" in {problem.kind for problem in found}


# --- files ------------------------------------------------------------------------------------------------------------


def packed(text):
    return gzip.compress(text.encode())


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.json", "a.zip"])
def test_a_file_of_holes_is_not_read(name, tmp_path):
    """It may have the size of all memory and takes nothing of the disk, so that anybody can send one."""
    path = tmp_path / name
    path.write_text(f"{HEADER}2024-01-02,1,1,1,1,1\n")
    os.truncate(path, 1 << 28)
    assert "made of holes" in str(check(str(path))[0])


ADVICE = "21 rows; a file of bars has at most 20: use longer bars, a shorter period, or fewer assets"


@pytest.mark.parametrize("rows", [20, 21])
@pytest.mark.parametrize(
    "name", ["a.csv", "a.csv.gz", "a.txt", "a.json", "b.json", "a.jsonl", "a.parquet", "a.feather", "a.zip"]
)
def test_a_file_of_more_rows_than_memory_holds_is_refused_before_it_is_read(name, rows, tmp_path, monkeypatch):
    """As many as the bound are read, one more is not; the line of names is no row of Parquet, but one of text."""
    monkeypatch.setattr(arrow_files, "MOST_ROWS", 20)
    path = tmp_path / name
    frame = bars(pd.date_range("2024-01-01", periods=rows).strftime("%Y-%m-%d"))
    text = frame.iloc[1:].to_csv(index=False, lineterminator="\r" if name == "a.txt" else "\n")
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".feather":
        frame.to_feather(path)
    elif name == "a.json":
        path.write_text(json.dumps(frame.to_numpy().tolist()))  # on one line
    elif name == "b.json":
        path.write_text(json.dumps(frame.to_dict("records"), indent=2))  # a line for each cell
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        written(path, {".gz": packed(text), ".zip": zipped("a.csv", text)}.get(path.suffix, text))
    found = [str(problem) for problem in check(str(path)) if problem.severity == "error"]
    assert [ADVICE in problem for problem in found] == ([True] if rows == 21 else []), found


@pytest.mark.parametrize(("bound", "most"), [("MOST_ROWS", 62), ("MOST_BYTES", 62 * 60)])
@pytest.mark.parametrize("kind", ["directory", "zip", "directory of zips"])
def test_many_files_have_together_no_more_than_one_may_have(kind, bound, most, tmp_path, monkeypatch):
    """Files of 30 bars, of 5 numbers of 8 bytes and a date of less than 20: two are within the bound, three are not."""
    text = bars(pd.date_range("2024-01-01", periods=30).strftime("%Y-%m-%d")).to_csv(index=False)
    source = tmp_path / ("bars.zip" if kind == "zip" else "bars")
    if kind != "zip":
        source.mkdir()

    def add(name):
        if kind == "directory":
            written(source / f"{name}.csv", text)
        else:
            with zipfile.ZipFile(source if kind == "zip" else source / f"{name}.zip", "a") as archive:
                archive.writestr(f"{name}.csv", text)

    add("A")
    add("B")
    monkeypatch.setattr(arrow_files, bound, most)
    assert load(source).assets == ("A", "B")
    add("C")
    with pytest.raises(DataError, match=r"90 rows, .* bytes of them, in the first 3 files of bars, of which"):
        load(source)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.json"])
def test_a_file_of_more_bytes_than_memory_holds_is_refused_before_it_is_read(name, tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_files, "MOST_BYTES", 99)
    problem = str(check(written(tmp_path / name, "x" * 100))[0])
    assert "100 bytes; a file of bars has at most 99: use longer bars" in problem


@pytest.mark.parametrize("name", ["\rA", "A\tB", "A\x1b[2J"])
def test_an_asset_that_a_file_or_a_config_names_has_no_control_characters(name, tmp_path):
    frame = bars(pd.date_range("2024-01-01", periods=30).strftime("%Y-%m-%d"))
    words = "is no name of an asset; expected letters and signs"
    with pytest.raises(DataError, match=words):
        load(written(tmp_path / f"{name}.csv", frame.to_csv(index=False)))
    with pytest.raises(DataError, match=words):
        load(frame, DataConfig(assets={"asset": name}))


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
        ("a.csv", 'time\topen\t"\n2024-01-02;10;11;9;10\n2024-01-03;10;11;9;10', "the file has a header and no bar"),
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
        "words above no bars",
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem(name, content, words, tmp_path):
    source = written(tmp_path / name, content)
    assert words in str(check(source)[-1])
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


def repeated(value, rows):
    """A column of one value, which is stored once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([value]))


BOMBS = {
    "rows": ({"close": pa.array(np.zeros(9_000_000))}, "says that it has 9,000,000 rows"),
    "rows of nothing": ({"close": pa.nulls(10**7)}, "says that it has 10,000,000 rows"),
    "one long text": ({"asset": pa.array(["x" * (1 << 27)])}, "expand to 134,217,7"),
    "a text for many rows": ({"asset": repeated("x" * 10_001, 50_000)}, "a text of 10,001 bytes in column 'asset'"),
    "columns": ({f"c{i}": pa.array([1.0]) for i in range(10_001)}, "10,001 columns; a file of bars has at most 10,000"),
    "lists alone": ({"close": pa.array([np.zeros(1000)])}, "no column of numbers, dates or texts"),
}


@pytest.mark.parametrize("kind", ["parquet", "feather"])
@pytest.mark.parametrize("name", BOMBS)
def test_parquet_and_feather_that_would_expand_are_refused_before_they_do(name, kind, tmp_path):
    columns, words = BOMBS[name]
    path = tmp_path / f"a.{kind}"
    write = pyarrow.parquet.write_table if kind == "parquet" else pyarrow.feather.write_feather
    write(pa.table(columns), path, compression="zstd")
    found = check(str(path))
    assert len(found) == 1 and words in str(found[0]) and "\n" not in str(found[0])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_a_text_that_parquet_stores_once_is_read_once(kind, tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"asset": pa.array(["x" * 10_001] * 4_000, kind)}), path)
    table, _ = arrow_files._read_parquet(path.read_bytes())
    assert table.nbytes < 1 << 20, "all of them have 40 MB"
    assert "a text of 10,001 bytes in column 'asset'" in str(check(str(path))[0])


def test_sizes_are_those_of_the_parts_and_not_what_the_end_of_a_file_says_of_them(tmp_path):
    size = 1 << 27
    path = tmp_path / "a.parquet"
    table = pa.table({"asset": pa.array(["x" * size])})
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    content = path.read_bytes()
    stated = pyarrow.parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    # As Thrift writes 2n: seven bits a byte, the last without the eighth. The lie says 1, in as many bytes.
    true = bytes(2 * stated >> shift & 127 | (128 if shift < 28 else 0) for shift in range(0, 35, 7))
    assert content.count(true) == 2, "of the column and of its group"
    path.write_bytes(content.replace(true, b"\x82\x80\x80\x80\x00"))
    assert pyarrow.parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 1
    assert "expand to 134,217,7" in str(check(str(path))[0])


def test_texts_that_share_their_beginnings_are_refused_since_their_size_is_not_told(tmp_path):
    names = pa.array(["x" * 1000 + str(i) for i in range(100)])
    encoding = {"use_dictionary": False, "column_encoding": {"asset": "DELTA_BYTE_ARRAY"}}
    for version in ("1.0", "2.0"):
        pyarrow.parquet.write_table(
            pa.table({"asset": names}), tmp_path / "a.parquet", data_page_version=version, **encoding
        )
        assert "texts that share their beginnings" in str(check(str(tmp_path / "a.parquet"))[0])


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_columns_that_are_no_cells_are_left_out_and_texts_stay_texts(kind, tmp_path):
    frame = bars(pd.date_range("2024-01-01", periods=30).astype(str), tic="A")
    expected = load(frame)
    path = tmp_path / f"a.{kind}"
    for text in ("object", "category"):
        table = pa.Table.from_pandas(frame.astype({"tic": text, "time": text}), preserve_index=False)
        table = table.append_column("notes", pa.array([[1, 2]] * 30))
        table = table.append_column("views", pa.array(["x"] * 30, pa.string_view()))
        (pyarrow.parquet.write_table if kind == "parquet" else pyarrow.feather.write_feather)(table, path)
        found = load(str(path))
        assert found.fingerprint == expected.fingerprint
        assert any("left out: notes, views" in str(problem) for problem in found.problems)


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


def test_a_name_of_digits_keeps_its_zeros_and_is_no_other_name(tmp_path):
    path = tmp_path / "bars.csv"
    daily(tic=["000001", "1"] * 20).to_csv(path, index=False)
    assert load(str(path)).assets == ("000001", "1")
    daily(tic="000001", volume=[5.0] * 39 + [np.nan]).to_csv(path, index=False)  # read line by line
    assert [problem.kind for problem in check(str(path))] == ["missing value"]
    daily(tic="000001").to_csv(path, index=False)
    assert load(str(path)).assets == ("000001",)


@pytest.mark.parametrize("name", ["bars.csv", "bars.parquet"])
def test_a_line_that_does_not_say_its_asset_is_named(name, tmp_path):
    frame, path = daily(tic=["A"] * 39 + [None]), tmp_path / name
    frame.to_csv(path, index=False) if name.endswith("csv") else frame.to_parquet(path)
    with pytest.raises(DataError, match=r"row 4[01]: asset name: the cell of 'tic' is empty; expected 1 to 64"):
        load(str(path))


@pytest.mark.parametrize("column", ["close", "volume"])
def test_true_is_no_price_and_no_volume_but_a_feature_may_be_true(column, tmp_path):
    records = daily(feature_up=True).to_dict("records")
    path = tmp_path / "bars.json"
    path.write_text(json.dumps(records))
    assert load(str(path)).extra["feature_up"].ravel()[3] == 1.0
    path.write_text(json.dumps([row | {column: True} if i == 3 else row for i, row in enumerate(records)]))
    with pytest.raises(DataError, match=f"row 4: text in number: {column} is 'True'; expected a number"):
        load(str(path))
    daily(**{column: True}).to_parquet(tmp_path / "bars.parquet")
    with pytest.raises(DataError, match=f"row 1: text in number: {column} is 'True'; expected a number"):
        load(str(tmp_path / "bars.parquet"))


def test_two_columns_of_one_name_are_named(tmp_path):
    frame, path = daily(), tmp_path / "bars.parquet"
    table = pa.Table.from_pandas(frame).append_column("close", pa.array(frame["close"]))
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(DataError, match="duplicate column: two columns are called 'close'; drop one of them"):
        load(str(path))
    with pytest.raises(DataError, match="duplicate column: two columns are called 'open'"):
        load(pd.concat([frame, frame[["open"]]], axis=1))
    with pytest.raises(DataError, match="duplicate column: two columns are called 'x'"):
        load(pd.concat([frame.assign(x=1), frame.assign(x=1)[["x"]]], axis=1))


def two_of(name, frame):
    return pd.concat([frame, frame[[name]]], axis=1)


TWO_LEVELS = pd.concat({"A": daily().set_index("time"), "B": daily().set_index("time")}, axis=1)
TWICE = {
    "vol": two_of("vol", daily(vol=2.0, tickvol=3.0).drop(columns="volume")),
    "A close": two_of(("A", "close"), TWO_LEVELS),
    "close A": daily().set_index("time").add_suffix("_A").assign(**{"close.A": 1.0}).reset_index(),
}


@pytest.mark.parametrize("name", TWICE)
def test_two_columns_of_one_name_are_named_before_anything_is_made_of_them(name):
    with pytest.raises(DataError, match=f"duplicate column: two columns are called '{name}'; drop one of them"):
        load(TWICE[name])


@pytest.mark.parametrize("name", ["volume", "notes"])
def test_two_columns_of_one_name_in_a_text_are_named(name, tmp_path):
    text = two_of(name, daily(notes=1)).to_csv(index=False)
    with pytest.raises(DataError, match=f"duplicate column: two columns are called '{name}'"):
        load(written(tmp_path / "a.csv", text))


def test_columns_that_nobody_has_named_may_be_many(tmp_path):
    text = "time,open,high,low,close,,\n" + "".join(f"2024-01-{day:02d},10,11,9,10,x,y\n" for day in range(1, 29))
    assert len(load(written(tmp_path / "a.csv", text))) == 28
    frame = daily(x=1, y=2, z=3).rename(columns={"x": "", "y": "", "z": "Unnamed: 0"})
    assert len(load(pd.concat([frame, frame[["Unnamed: 0"]]], axis=1))) == 40


def test_an_index_that_is_a_column_too_is_left_out_and_said():
    frame = daily().assign(time=lambda each: pd.to_datetime(each["time"]))
    for name in ("time", "date"):
        named = frame.rename(columns={"time": name})
        found = load(named.set_index(name, drop=False))
        assert found.fingerprint == load(frame).fingerprint
        assert f"the index is left out: '{name}' is a column too" in "\n".join(map(str, found.problems))


def test_the_column_of_names_is_of_texts_also_where_the_config_says_which_it_is(tmp_path):
    path = written(tmp_path / "bars.csv", daily(wkn=["000001", "1"] * 20).to_csv(index=False))
    assert load(path, DataConfig(columns={"wkn": "asset"})).assets == ("000001", "1")
    with zipfile.ZipFile(tmp_path / "bars.zip", "w") as archive:
        archive.write(path, "bars.csv")
    assert load(str(tmp_path / "bars.zip"), DataConfig(columns={"wkn": "asset"})).assets == ("000001", "1")


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "frame"])
def test_a_column_of_names_that_is_empty_names_nothing_and_the_file_does(kind, tmp_path):
    frame, path = daily(symbol=None), tmp_path / f"GOLD.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "json":
        frame.to_json(path, orient="records")
    elif kind == "parquet":
        frame.to_parquet(path)
    found = load(frame.assign(symbol=np.nan), name="GOLD") if kind == "frame" else load(str(path))
    assert found.assets == ("GOLD",)
    assert "'symbol' is empty on every line: the asset is called 'GOLD'" in "\n".join(map(str, found.problems))


@pytest.mark.parametrize("column", ["Dividends", "Stock Splits"])
def test_false_is_no_split_and_no_dividend_and_true_is_no_number(column, tmp_path):
    expected = load(daily(), DataConfig(dividends="raw"))
    for cells in (False, [False] * 39 + ["0"], [np.bool_(False)] * 39 + [0.0]):
        found = load(daily(**{column: cells}), DataConfig(dividends="raw"))
        np.testing.assert_array_equal(found.close, expected.close)
    path = written(tmp_path / "asset.csv", daily(**{column: False}).to_csv(index=False))
    np.testing.assert_array_equal(load(path).close, expected.close)
    name = column.lower().replace(" ", "_")
    with pytest.raises(DataError, match=f"row 3: text in number: {name} is 'True'; expected a number"):
        load(daily(**{column: [False] * 2 + [True] + [False] * 37}))


def test_true_of_numpy_is_no_price():
    cells = np.array([10.0] * 39 + [np.bool_(True)], dtype=object)
    with pytest.raises(DataError, match="row 40: text in number: close is 'True'; expected a number"):
        load(daily(close=cells))


def test_a_file_that_holds_no_bars_takes_no_room_from_those_that_do(tmp_path, monkeypatch):
    """Two files of 30 bars are within a bound of 62 rows; 50 lines of something else are not counted."""
    text = bars(pd.date_range("2024-01-01", periods=30).strftime("%Y-%m-%d")).to_csv(index=False)
    for name in ("A.csv", "C.csv"):
        written(tmp_path / name, text)
    written(tmp_path / "B.csv", "station,rain,wind,sun\n" + "x,1,2,3\n" * 50)
    monkeypatch.setattr(arrow_files, "MOST_ROWS", 62)
    found = load(tmp_path)
    assert found.assets == ("A", "C") and "B.csv holds no bars" in "\n".join(map(str, found.problems))


@pytest.mark.parametrize("names", [("time", "asset"), ("Date", "symbol"), (None, None)], ids=str)
@pytest.mark.parametrize("kept", [False, True], ids=["index alone", "columns too"])
def test_an_index_of_times_and_assets_is_read_as_two_columns(names, kept):
    times = pd.date_range("2024-01-01", periods=30)
    frame = pd.concat([bars(times).assign(asset=name) for name in ("A", "B")])
    indexed = frame.set_index(["time", "asset"], drop=not kept)
    found = load(indexed if kept else indexed.rename_axis(index=names))
    assert (found.assets, len(found)) == (("A", "B"), 30)
    assert len([note for note in found.problems if "the index is left out" in str(note)]) == 2 * kept


@pytest.mark.parametrize("content", [b"\x1f\x8bno gzip", b""], ids=["damaged", "empty"])
def test_a_file_beside_others_that_cannot_be_read_is_an_asset_that_would_be_missed(content, tmp_path):
    text = bars(pd.date_range("2024-01-01", periods=30).strftime("%Y-%m-%d")).to_csv(index=False)
    written(tmp_path / "A.csv", text)
    (tmp_path / "B.csv.gz").write_bytes(content)
    with pytest.raises(
        DataError, match=r"B\.csv\.gz: (binary: ends in \.gz but is not a whole|empty: the file is empty)"
    ):
        load(tmp_path)


def test_files_whose_columns_the_config_names_are_bounded_too_and_the_largest_is_named(tmp_path, monkeypatch):
    """Of 3, 40 and 20 bars the bound of 62 rows is passed with the third, and the second is the largest."""
    german = {"open": "Anfang", "high": "Oben", "low": "Unten", "close": "Ende"}
    for name, periods in (("A", 3), ("B", 40), ("C", 20)):
        frame = bars(pd.date_range("2024-01-01", periods=periods).strftime("%Y-%m-%d")).rename(columns=german)
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    monkeypatch.setattr(arrow_files, "MOST_ROWS", 62)
    config = DataConfig(columns={theirs: ours for ours, theirs in german.items()})
    with pytest.raises(DataError, match=r"63 rows, .* in the first 3 files of bars, of which B\.csv is the largest"):
        load(tmp_path, config)


def test_a_file_of_a_price_per_ticker_is_one_of_bars_also_beside_others(tmp_path):
    frame = daily().set_index("time")
    frame.add_suffix("_WIDE").to_csv(tmp_path / "wide.csv")
    frame.to_csv(tmp_path / "PLAIN.csv")
    assert sorted(load(tmp_path).assets) == ["PLAIN", "WIDE"]
