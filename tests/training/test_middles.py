import numpy as np
import pytest

from dg_lsp.training.middles import MiddleShares, pick_middle

BLOCK = ["    if ready(first, second):", "        first += 1", "", "        return first", "    return None"]


@pytest.fixture(scope="module")
def picked():
    rng = np.random.default_rng(0)
    return [pick_middle(BLOCK, rng) for _ in range(4000)]


def test_middles_lie_in_the_text_and_are_not_empty(picked):
    text = "\n".join(BLOCK)
    assert all(0 <= m.start < m.end <= len(text) for m in picked)


def test_what_an_editor_asks_is_asked_for(picked):
    text = "\n".join(BLOCK)
    asked = [text[m.start : m.end] for m in picked]
    starts = [m.start for m in picked]
    body = "\n".join(BLOCK[1:4])
    assert any(start not in (0, 4) and text[start - 1].isalnum() and text[start].isalnum() for start in starts)
    for middle in ("ready(first, second):", BLOCK[0], BLOCK[0][4:], "\n".join(BLOCK[:2]), body, body.lstrip()):
        assert middle in asked
    rest_of_line = np.mean([m.end == len(BLOCK[0]) for m in picked])
    assert rest_of_line > 0.45


def test_shares_decide_what_is_asked_for():
    rng = np.random.default_rng(0)
    picked = [pick_middle(BLOCK, rng, MiddleShares(line_rest=0.0, lines=0.0, span=0.0, body=1.0)) for _ in range(50)]
    assert all(m.start >= len(BLOCK[0]) for m in picked)
    kinds = [MiddleShares(0.5, 0.5, 0.0, 0.0).pick(rng) for _ in range(50)]
    assert set(kinds) == {"line_rest", "lines"}
