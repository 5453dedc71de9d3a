import tomllib
from pathlib import Path

import pytest

from dg_lsp.bench.samples import SamplePosition, read_positions, sample_table
from dg_lsp.engine.result import FillResult, Timings
from dg_lsp.errors import InputFileError
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection

SAMPLES = Path(__file__).parents[2] / "samples"
TIMINGS = Timings(0, 0, 0, 0, 0)


def result_of(text=None):
    candidates = () if text is None else (Candidate(text, -0.1),)
    rejections = (Rejection(Reason.SYNTAX_ERROR),) if text is None else ()
    return FillResult("m", candidates, rejections, 16, 3, 2.0, 10, 0, TIMINGS)


def test_the_table_has_a_row_per_position_and_counts_the_right_fills():
    positions = [
        SamplePosition("x.py", 1, ["a"], 5),
        SamplePosition("y.py", 2, ["b|c"]),
        SamplePosition("z.py", 3, ["d"]),
    ]
    fills = iter(["a", "one\n    `two`", None])
    table = sample_table(positions, lambda _: result_of(next(fills)))
    assert [row[:5] for row in table.groups[""]] == [
        ("x.py:1:5", "`a`", "`a`", "right", "3"),
        ("y.py:2", "`b\\|c`", "`` one↵    `two` ``", "other", "3"),
        ("z.py:3", "`d`", "", "syntax-error", "3"),
    ]
    assert table.caption == "1 of 3 as expected"


@pytest.mark.parametrize(
    "text", ["", "places = 3", "[[places]]\nfile = 'x'", "[[places", "[[places]]\nfile='x'\nline='y'"]
)
def test_a_file_without_positions_is_refused(tmp_path, text):
    (tmp_path / "places.toml").write_text(text)
    with pytest.raises(InputFileError, match=r"places\.toml"):
        read_positions(tmp_path / "places.toml")


def test_the_samples_have_at_least_twenty_positions():
    assert len(read_positions(SAMPLES / "places.toml")) >= 20


@pytest.mark.parametrize("position", read_positions(SAMPLES / "places.toml"), ids=lambda one: f"{one.file}:{one.line}")
def test_a_sample_with_an_expected_text_is_valid(position):
    from dg_lsp.cli.source import SourceFile

    source = SourceFile.read(SAMPLES / position.file)
    offset = source.offset_at(position.line, position.col)
    is_valid = position.file != "halfway.py"
    assert valid(source.text) == is_valid
    for text in position.expect:
        assert valid(source.text[:offset] + text + source.text[offset:]) == is_valid, text


def valid(text):
    try:
        compile(text, "sample", "exec")
    except SyntaxError:
        return False
    return True


def test_samples_keep_their_line_ends_and_tabs():
    assert (
        (SAMPLES / "windows.py").read_bytes().count(b"\r\n") == (SAMPLES / "windows.py").read_bytes().count(b"\n") > 0
    )
    assert b"\n\t" in (SAMPLES / "tabs.py").read_bytes()
    assert not (SAMPLES / "greetings.py").read_bytes().endswith(b"\n")
    assert tomllib.loads((SAMPLES / "places.toml").read_text(encoding="utf-8"))
