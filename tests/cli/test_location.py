from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.cli.source import Location
from dg_lsp.errors import PositionError, UsageError


@pytest.mark.parametrize(
    ("text", "path", "line", "column"),
    [
        ("a.py:3", "a.py", 3, None),
        ("a.py:3:5", "a.py", 3, 5),
        ("/tmp/x y/ü.py:10:1", "/tmp/x y/ü.py", 10, 1),
        (r"C:\work\a.py:3", r"C:\work\a.py", 3, None),
        (r"C:\work\a.py:3:7", r"C:\work\a.py", 3, 7),
        ("C:a.py:3", "C:a.py", 3, None),
        ("a:b:3", "a:b", 3, None),
        ("a:b:3:4", "a:b", 3, 4),
        ("a:1:2:3", "a:1", 2, 3),
        ("a.py:007", "a.py", 7, None),
        ("a\nb.py:2", "a\nb.py", 2, None),
    ],
)
def test_numbers_are_read_from_the_right(text, path, line, column):
    assert Location.parse(text) == Location(Path(path), line, column)


@pytest.mark.parametrize(
    "text", ["", "a.py", ":3", "a.py:", "a.py:x", "a.py:-3", "a.py:3:", "a.py:1.5", "a.py:" + "9" * 9999, "a.py:٣"]
)
def test_without_a_line_the_form_is_told(text):
    with pytest.raises(UsageError, match=r"FILE:LINE"):
        Location.parse(text)


@pytest.mark.parametrize("text", ["a.py:0", "a.py:0:1", "a.py:1:0"])
def test_zero_is_no_position(text):
    with pytest.raises(PositionError, match="from 1"):
        Location.parse(text)


def test_a_file_whose_name_ends_in_a_number_is_found(tmp_path):
    (tmp_path / "notes:7").write_text("x")
    assert Location.parse(f"{tmp_path}/notes:7:3") == Location(tmp_path / "notes:7", 3)
    (tmp_path / "notes").write_text("x")
    assert Location.parse(f"{tmp_path}/notes:7:3") == Location(tmp_path / "notes", 7, 3)


def test_a_name_that_no_system_takes_is_still_parsed():
    assert Location.parse("x" * 3000 + ":1:2") == Location(Path("x" * 3000), 1, 2)


@given(st.text(min_size=1).filter(lambda path: "\0" not in path), st.integers(1, 10**9), st.integers(1, 10**9))
def test_what_is_printed_is_parsed_again(path, line, column):
    location = Location(Path(path), line, column)
    assert Location.parse(str(location)) == location
