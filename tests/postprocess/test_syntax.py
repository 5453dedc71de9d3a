import pytest

from dg_lsp.context.languages import PLAIN, language_of
from dg_lsp.postprocess.syntax import Surroundings

from .conftest import cases

PYTHON = language_of("python")


@pytest.mark.parametrize(("language", "marked", "fill", "kept"), cases("python", "fill", "kept"))
def test_a_fill_is_kept_as_far_as_it_adds_no_syntax_error(language, marked, fill, kept):
    before, _, after = marked.partition("¦")
    assert Surroundings.of(before, after, language_of(language)).keep_valid(fill) == kept


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
