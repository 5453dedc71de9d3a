import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import REACH
from dg_lsp.context.languages import PLAIN, language_of
from dg_lsp.postprocess.syntax import Surroundings

from .conftest import cases

PYTHON = language_of("python")


def surroundings_of(marked):
    before, _, after = marked.partition("|")
    return Surroundings.of(before, after, PYTHON)


@pytest.mark.parametrize(("language", "marked", "fill", "kept"), cases("python", "fill", "kept"))
def test_a_fill_is_kept_as_far_as_it_adds_no_syntax_error(language, marked, fill, kept):
    before, _, after = marked.partition("¦")
    assert Surroundings.of(before, after, language_of(language)).keep_valid(fill) == kept


def test_a_fill_in_a_giant_line_is_kept():
    around = surroundings_of("def f():\n    x = [|" + "1, " * REACH + "]\n\ny = 1\n")
    assert around.keep_valid("0, ") == "0, "


VALID = """class A:
    def f(self, x: int, *, y: str = "(") -> dict[str, list[int]]:
        '''It's a docstring.'''
        for i in range(x):
            if i % 2 and (x or y):
                print(f"{i!r:>{x}} {y['a']}", end="")
            else:
                continue
        with open(y) as file, self.g(1):
            data = {k: [v, *self.h(v)] for k, v in file.items() if v}
        return data  # a comment (
"""


@given(st.integers(0, len(VALID)), st.integers(0, len(VALID)))
def test_text_cut_out_of_valid_code_is_valid_there(start, end):
    start, end = sorted((start, end))
    around = Surroundings.of(VALID[:start], VALID[end:], PYTHON)
    assert around.keep_valid(VALID[start:end]) == VALID[start:end]


@pytest.mark.parametrize(
    ("before", "after", "language"),
    [
        pytest.param("x = ", "", PLAIN, id="unknown language"),
        pytest.param("prose, it's (\n" * 1000, "more prose\n" * 1000, PYTHON, id="far from any landmark"),
        pytest.param("x = [" + "1, " * 1_000_000, "]", PYTHON, id="giant line"),
    ],
)
def test_other_text_is_not_checked(before, after, language):
    assert Surroundings.of(before, after, language) is None
