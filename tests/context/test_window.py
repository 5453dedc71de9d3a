from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dg_lsp.context.document import Snapshot
from dg_lsp.context.window import STRIDE, WINDOW, Prompt, prompt_at, windows_of

CODE = "".join(f"    value_{i} = compute({i})\n" for i in range(400))


def shown(marked, prefix_chars=100, suffix_chars=100):
    snapshot = Snapshot("file:///a.py", marked.replace("|", "", 1))
    return prompt_at(snapshot, marked.index("|"), prefix_chars=prefix_chars, suffix_chars=suffix_chars)


@pytest.mark.parametrize(
    ("marked", "prompt"),
    [
        pytest.param("|", Prompt("", ""), id="an empty buffer"),
        pytest.param("|a\nb", Prompt("", "a\nb"), id="offset 0"),
        pytest.param("a\nb|", Prompt("a\nb", ""), id="the end of a file without a last line end"),
        pytest.param("a\r\n\tx = |1  \r\nb\r\n", Prompt("a\n    x = ", "1\nb\n"), id="CRLF, tabs, trailing blanks"),
        pytest.param("\ufeffimport |os", Prompt("import ", "os"), id="a byte order mark is not shown"),
        pytest.param("# é😋|x", Prompt("# é😋", "x"), id="an emoji before the cursor"),
    ],
)
def test_a_small_buffer_is_in_the_prompt_completely(marked, prompt):
    assert shown(marked) == replace(prompt, path="a.py", language="python")


@pytest.mark.parametrize(
    ("marked", "num_chars", "prefix", "suffix"),
    [
        pytest.param("|x)\nbbb\nccc\n", 8, "", "x)\nbbb\n", id="whole lines within the budget"),
        pytest.param("|x)\nbbb\nccc\n", 7, "", "x)\nbbb\n", id="a line that just fits"),
        pytest.param("|x)\nbbb\nccc\n", 6, "", "x)\n", id="a line that does not fit"),
        pytest.param("|\nbbbbbbbbbb\n", 6, "", "\nbbbbb", id="the first line with text is cut"),
        pytest.param("|" + "b" * 50, 6, "", "bbbbbb", id="a giant line is cut"),
        pytest.param("|x)\n\tb\n", 5, "", "x)\n", id="tabs count as shown"),
        pytest.param("aaaa\nbbbb\ncc|", 12, "aaaa\nbbbb\ncc", "", id="all of the prefix"),
        pytest.param("a" * 100 + "\n" + "b" * 95 + "|", 100, "b" * 95, "", id="from a line start near a cut"),
        pytest.param("a" * 100 + "\r\n" + "b" * 95 + "|", 100, "b" * 95, "", id="after a CRLF"),
        pytest.param("a" * 150 + "|", 100, "a" * 90, "", id="the end of a giant line"),
        pytest.param("aaaa|x)\nb\n", 0, "", "", id="no budget"),
    ],
)
def test_the_prefix_begins_in_steps_and_the_suffix_has_whole_lines(marked, num_chars, prefix, suffix):
    prompt = shown(marked, prefix_chars=num_chars, suffix_chars=num_chars)
    assert (prompt.prefix, prompt.suffix) == (prefix, suffix)


lines = st.lists(st.text("ab (é😋", max_size=30).map(str.rstrip), max_size=60)


@given(lines.map("\n".join), st.integers(1, 200), st.integers(1, 200), st.data())
def test_prefix_and_suffix_are_next_to_the_cursor_within_the_budget(text, prefix_chars, suffix_chars, data):
    offset = data.draw(st.integers(0, len(text)))
    prompt = prompt_at(Snapshot("u", text), offset, prefix_chars=prefix_chars, suffix_chars=suffix_chars)
    assert text[:offset].endswith(prompt.prefix)
    # blanks right after the cursor may stand at the end of its line
    assert text[offset:].lstrip().startswith(prompt.suffix.lstrip())
    assert 0.7 * min(offset, prefix_chars) - 1 <= len(prompt.prefix) <= prefix_chars
    assert len(prompt.suffix) <= suffix_chars


@given(st.text("ab \t\r\n\x0c\0\u2028e\u0301😋\ud83d\u200d", max_size=300), st.integers(0, 90), st.data())
def test_any_text_makes_a_prompt_that_can_be_encoded(text, num_chars, data):
    offset = data.draw(st.integers(0, len(text)))
    prompt = prompt_at(Snapshot("u", text), offset, prefix_chars=num_chars, suffix_chars=num_chars)
    for shown_text in (prompt.prefix, prompt.suffix):
        assert len(shown_text.encode()) <= 4 * num_chars
        assert not {"\r", "\t"} & set(shown_text)


@settings(max_examples=30)
@given(st.integers(0, len(CODE)), st.integers(200, 2000))
def test_typing_moves_the_start_of_the_window_a_few_times_only(offset, prefix_chars):
    typed = "result = [transform(item) for item in items]\n" * 5
    prefixes = []
    for num in range(200):
        text = CODE[:offset] + typed[:num] + CODE[offset:]
        prompt = prompt_at(Snapshot("u", text), offset + num, prefix_chars=prefix_chars, suffix_chars=300)
        prefixes.append(prompt.prefix)
    moves = sum(not new.startswith(old) for old, new in pairwise(prefixes))
    assert moves <= 1 + 200 / (prefix_chars // 5)


def test_windows_overlap_and_cover_the_text():
    lines = [f"line{number}" for number in range(100)]
    windows = windows_of("\n".join(lines))
    assert [window.lines[0] for window in windows[:3]] == ["line0", f"line{STRIDE}", f"line{2 * STRIDE}"]
    assert all(len(window.lines) <= WINDOW for window in windows)
    assert {line for window in windows for line in window.lines} == set(lines)
    assert len(windows_of("")) == 1
