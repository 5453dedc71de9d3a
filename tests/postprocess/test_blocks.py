"""Fills of every language where an editor has closed what they close again: rests of lines, lines and blocks."""

import pytest

from dg_lsp.postprocess.validate import Candidate

from .conftest import cases, judged


@pytest.mark.parametrize(("language", "marked", "fill", "kept"), cases("repeated_ends", "fill", "kept"))
def test_a_fill_ends_where_the_text_behind_it_begins(language, marked, fill, kept):
    assert judged(marked, fill, language) == Candidate(kept, -0.5)
