"""`leeward data check` and `leeward data fetch`, as a user calls them."""

import builtins
import gzip
import json

import numpy as np
import pytest

HEADER = "date,open,high,low,close,volume"
DAYS = [str(day) for day in np.busday_offset("2024-01-01", np.arange(40), roll="forward")]
GOOD = [f"{day},10.5,12,9,11,{1000 + i}" for i, day in enumerate(DAYS)]


def cell(row, column, value):
    """The good file with one cell changed; `row` counts from the header, which is row 1."""
    lines = [HEADER, *GOOD]
    cells = lines[row - 1].split(",")
    cells[column] = value
    lines[row - 1] = ",".join(cells)
    return "\n".join(lines) + "\n"


def text(*lines):
    return "\n".join(lines) + "\n"


ZONED = [f"{day}T00:00:00{'Z' if i < 39 else '+05:30'},10.5,12,9,11,1" for i, day in enumerate(DAYS)]
# kind -> content, the row named in the line (None: the whole file)
BAD = {
    "gap": (text(HEADER, *GOOD, "2024-06-03,10,12,9,11,1"), 42),
    "duplicate time": (text(HEADER, *GOOD[:5], *GOOD[4:]), 7),
    "unsorted time": (text(HEADER, *GOOD[:5], GOOD[6], GOOD[5], *GOOD[7:]), 8),
    "missing value": (cell(5, 4, ""), 5),
    "price not positive": (cell(6, 3, "0"), 6),
    "infinite price": (cell(8, 2, "inf"), 8),
    "negative volume": (cell(9, 5, "-3"), 9),
    "high below low": (cell(10, 2, "1"), 10),
    "mixed time zones": (text(HEADER, *ZONED), 41),
    "missing column": (text("date,open,high,low,volume", *(line.replace(",11,", ",") for line in GOOD)), None),
    "ragged row": (text(HEADER, *GOOD[:3], GOOD[3] + ",7", *GOOD[4:]), 5),
    "impossible date": (cell(11, 0, "2024-02-30"), 11),
    "text in number": (cell(12, 4, "n.a. today"), 12),
    "empty": ("", None),
    "no bars": (text(HEADER), None),
    "html": ("<!DOCTYPE html>\n<html><body>Sign in</body></html>\n", None),
    "binary": (b"\x00\x01\x02\xff\xfe" * 100, None),
}


def write(tmp_path, content, name="bars.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("kind", BAD)
def test_every_kind_of_bad_file_is_one_line_with_its_row_and_exit_code_1(leeward, tmp_path, kind):
    content, row = BAD[kind]
    write(tmp_path, content)
    result = leeward("data", "check", "bars.csv")
    assert result.code == 1
    lines = (result.out + result.err).splitlines()
    assert len(lines) == 1, lines
    assert "Traceback" not in lines[0]
    if row is not None:
        assert lines[0].startswith(f"bars.csv row {row}: error: "), lines[0]
    else:
        assert "bars.csv: " in lines[0]
    assert [path.name for path in tmp_path.iterdir()] == ["bars.csv"], "nothing is written"


def test_a_negative_price_is_a_price_that_is_not_positive(leeward, tmp_path):
    write(tmp_path, cell(7, 4, "-5"))
    result = leeward("data", "check", "bars.csv")
    assert result.code == 1
    assert "bars.csv row 7: error: price not positive" in result.out


def test_at_most_20_problems_of_a_kind_are_shown_and_then_a_count(leeward, tmp_path):
    write(tmp_path, text(HEADER, *(line.replace(",9,", ",-9,") for line in GOOD)))
    result = leeward("data", "check", "bars.csv")
    assert result.code == 1
    assert len(result.out.splitlines()) == 21
    assert result.out.splitlines()[-1].endswith("and 20 more of this kind")


def test_a_gap_that_is_allowed_is_a_warning(leeward, tmp_path):
    write(tmp_path, BAD["gap"][0])
    result = leeward("data", "check", "bars.csv", "--set", "allow_gaps=true")
    assert result.code == 0
    assert "row 42: warning: gap" in result.out
    assert result.out.splitlines()[-1] == "bars.csv: good, 1 warning"


@pytest.mark.parametrize("sample", ["nasdaq", "eurusd_1h", "aapl", "synthetic", "control"])
def test_the_samples_pass(leeward, sample):
    result = leeward("data", "check", f"sample:{sample}")
    assert (result.code, result.out.splitlines()[-1].startswith(f"sample:{sample}: good")) == (0, True), result.out


SPELLINGS = {
    "a byte order mark": "\ufeff" + text(HEADER, *GOOD),
    "semicolons": text(HEADER, *GOOD).replace(",", ";"),
    "tabs": text(HEADER, *GOOD).replace(",", "\t"),
    "epoch seconds": text(HEADER, *(f"{1704067200 + 86400 * i},10.5,12,9,11,1" for i in range(40))),
    "epoch milliseconds": text(HEADER, *(f"{1704067200000 + 86400000 * i},10.5,12,9,11,1" for i in range(40))),
    "a time zone": text(HEADER, *(f"{day}T00:00:00+02:00,10.5,12,9,11,1" for day in DAYS)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_other_spellings_are_simply_read(leeward, tmp_path, spelling):
    write(tmp_path, SPELLINGS[spelling])
    result = leeward("data", "check", "bars.csv")
    assert (result.code, result.out.splitlines()[-1]) == (0, "bars.csv: good")


def test_a_compressed_file_whose_name_looks_like_markup_is_named_as_it_is(leeward, tmp_path):
    write(tmp_path, gzip.compress(text(HEADER, *GOOD).encode()), "[bold]bars.csv.gz")
    assert leeward("data", "check", "[bold]bars.csv.gz").out.endswith("\n[bold]bars.csv.gz: good\n")


def test_a_file_that_is_not_there_is_one_line(leeward):
    result = leeward("data", "check", "none.csv")
    assert result.code == 1
    assert result.err.startswith("error: none.csv: no such file") and result.err.count("\n") == 1


def test_fetch_says_what_is_wrong_with_its_arguments(leeward, tmp_path):
    assert leeward("data", "fetch", "binance", "BTC/USDT").code == 2
    assert leeward("data", "fetch", "binance", "BTC/USDT", "4h").code == 2  # --since is needed
    wrong_day = leeward("data", "fetch", "binance", "BTC/USDT", "4h", "--since", "yesterday")
    assert (wrong_day.code, wrong_day.err) == (
        1,
        "error: --since 'yesterday': expected a day such as 2021-01-01\n",
    )
    wrong_place = leeward("data", "fetch", "binanse", "BTC/USDT", "4h", "--since", "2021-01-01")
    assert (wrong_place.code, wrong_place.err) == (
        1,
        "error: no exchange 'binanse' in ccxt; did you mean 'binance'?\n",
    )
    wrong_bars = leeward("data", "fetch", "binance", "BTC/USDT", "4x", "--since", "2021-01-01")
    assert wrong_bars.code == 1 and "has no bars of '4x'" in wrong_bars.err
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_fetch_without_its_extra_says_which_one_to_install(leeward, monkeypatch):
    real = builtins.__import__

    def without_ccxt(name, *arguments, **keywords):
        if name == "ccxt":
            raise ModuleNotFoundError("No module named 'ccxt'", name="ccxt")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_ccxt)
    result = leeward("data", "fetch", "binance", "BTC/USDT", "4h", "--since", "2021-01-01")
    assert (result.code, result.err) == (
        1,
        "error: downloading bars needs the package 'ccxt': pip install 'leeward[exchange]'\n",
    )


LONG = [
    f"{day},10.5,12,9,11,{1000 + i},tech"
    for i, day in enumerate(np.datetime64("2021-01-01") + np.arange(500) * np.timedelta64(1, "D"))
]


def test_a_check_says_what_the_bars_are_and_how_they_would_be_split(leeward, tmp_path):
    write(tmp_path, text(HEADER + ",Sector", *LONG))
    lines = leeward("data", "check", "bars.csv").out.splitlines()
    # the longest look-back, 77 bars, lies before each split: train 77 … 325, validation 402 … 400
    assert lines[0] == "1 asset, bars every 1 day"
    assert lines[1] == "  bars  500 bars, 2021-01-01 to 2022-05-15"
    assert "Not enough to train on" in lines[2] and "validation split has 0 of 500 bars left" in lines[2]
    assert "note: ignored: 'Sector'" in lines[3] and lines[4] == "bars.csv: good"


def test_a_check_as_json_holds_the_same(leeward, tmp_path):
    write(tmp_path, text(HEADER + ",Sector", *LONG))
    dates = ["splits={validation_from: 2021-06-01, test_from: 2021-12-01}", "features=[return_1]"]
    command = ["data", "check", "bars.csv", "--json", *(part for s in dates for part in ("--set", s))]
    found = json.loads(leeward(*command).out)
    assert found["good"] and found["assets"][0]["bars"] == 500 and len(found["problems"]) == 1
    # one bar of embargo before each split
    assert (found["splits"]["validation"]["first"], found["splits"]["test"]["first"]) == ("2021-06-02", "2021-12-02")
    assert found["enough"].startswith("train has 149 decisions, fewer than 500")
    write(tmp_path, "nothing\n")
    result = leeward("data", "check", "bars.csv", "--json")
    assert result.code == 1 and json.loads(result.out)["good"] is False
