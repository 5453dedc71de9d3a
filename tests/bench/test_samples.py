import tomllib
from pathlib import Path

import pytest

from dg_lsp.bench.samples import ExpectedFill, SampleFill, fill_places, markdown_table, read_places
from dg_lsp.engine.result import FillResult, Timings
from dg_lsp.errors import InputFileError
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection

SAMPLES = Path(__file__).parents[2] / "samples"
TIMINGS = Timings(0, 0, 0, 0, 0)


def result_of(text=None):
    candidates = () if text is None else (Candidate(text, -0.1),)
    rejections = (Rejection(Reason.SYNTAX_ERROR),) if text is None else ()
    return FillResult("m", candidates, rejections, 16, 3, 2.0, 10, 0, TIMINGS)


@pytest.mark.parametrize(
    ("fill", "is_met"),
    [
        ("a + b", True),
        ("b + a", True),
        ("  a + b  \n", True),
        ("a + b\nmore", True),
        ("a+b", False),
        ("a + b - c", False),
        ("", False),
        ("\n", False),
    ],
)
def test_the_first_line_decides(fill, is_met):
    assert ExpectedFill("x.py", 1, ["a + b", "b + a"]).is_met_by(fill) is is_met


def test_verdicts():
    place = ExpectedFill("x.py", 1, ["a"])
    verdicts = [SampleFill(place, result_of(text), 1.0).verdict for text in ("a", "b", None)]
    assert verdicts == ["right", "other", "syntax-error"]


def test_the_table_has_a_row_per_place_and_counts():
    places = [ExpectedFill("x.py", 1, ["a"], 5), ExpectedFill("y.py", 2, ["b|c"]), ExpectedFill("z.py", 3, ["d"])]
    fills = iter(["a", "one\n    `two`", None])
    lines = list(markdown_table(fill_places(places, lambda _: result_of(next(fills)))))
    assert lines[2].startswith("| x.py:1:5 | `a` | `a` | right | 3 | ")
    assert lines[3].startswith("| y.py:2 | `b\\|c` | `` one↵    `two` `` | other | 3 | ")
    assert lines[4].startswith("| z.py:3 | `d` |  | syntax-error | 3 | ")
    assert lines[-1] == "\n1 of 3 as expected."
    assert {line.replace("\\|", "").count("|") for line in lines[:-1]} == {7}


@pytest.mark.parametrize(
    "text", ["", "places = 3", "[[places]]\nfile = 'x'", "[[places", "[[places]]\nfile='x'\nline='y'"]
)
def test_a_file_that_lists_no_places_is_refused(tmp_path, text):
    (tmp_path / "places.toml").write_text(text)
    with pytest.raises(InputFileError, match=r"places\.toml"):
        read_places(tmp_path / "places.toml")


def test_there_are_twenty_places_and_more():
    assert len(read_places(SAMPLES / "places.toml")) >= 20


@pytest.mark.parametrize("place", read_places(SAMPLES / "places.toml"), ids=lambda place: f"{place.file}:{place.line}")
def test_every_expected_text_makes_the_sample_right(place):
    """At each place, the file with an expected text in it is as valid as before, and the place is where blanks end."""
    from dg_lsp.cli.source import SourceFile

    source = SourceFile.read(SAMPLES / place.file)
    offset = source.offset_at(place.line, place.col)
    is_valid = place.file != "halfway.py"
    assert valid(source.text) == is_valid
    for text in place.expect:
        assert valid(source.text[:offset] + text + source.text[offset:]) == is_valid, text


def test_all_places_filled_at_once_are_valid_python():
    by_file: dict[str, list[ExpectedFill]] = {}
    for place in read_places(SAMPLES / "places.toml"):
        by_file.setdefault(place.file, []).append(place)
    assert sorted(by_file) == sorted(path.name for path in SAMPLES.glob("*.py"))
    from dg_lsp.cli.source import SourceFile

    for name, places in by_file.items():
        source = SourceFile.read(SAMPLES / name)
        text = source.text
        for place in reversed(places):
            offset = source.offset_at(place.line, place.col)
            text = text[:offset] + place.expect[0] + text[offset:]
        assert valid(text), name


def valid(text):
    try:
        compile(text, "sample", "exec")
    except SyntaxError:
        return False
    return True


def test_samples_keep_the_bytes_that_they_are_there_to_show():
    assert (
        (SAMPLES / "windows.py").read_bytes().count(b"\r\n") == (SAMPLES / "windows.py").read_bytes().count(b"\n") > 0
    )
    assert b"\n\t" in (SAMPLES / "tabs.py").read_bytes()
    assert not (SAMPLES / "greetings.py").read_bytes().endswith(b"\n")
    assert tomllib.loads((SAMPLES / "places.toml").read_text(encoding="utf-8"))
