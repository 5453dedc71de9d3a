import math

import pytest

from dg_lsp.bench.replay.typing_model import TypingModel, split_keys

CODE = "def area(width, height):\n    total = width * height\n    return total\n\n\nprint(area(1, 2))\n" * 40


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ab", ["a", "b"]),
        ("a\n    b", ["a", "\n    ", "b"]),
        ("a\r\n\tb\r\n", ["a", "\r\n\t", "b", "\r\n"]),
        ("a\n\n\n  b", ["a", "\n", "\n", "\n  ", "b"]),
        ("a  b\rc", ["a", " ", " ", "b", "\r", "c"]),
        ("é😋\u2028", ["é", "😋", "\u2028"]),
        ("", []),
    ],
)
def test_a_line_end_includes_the_indentation(text, keys):
    assert list(split_keys(text)) == keys
    assert "".join(split_keys(text)) == text


def test_pauses_are_longer_before_lines_and_words():
    typing = TypingModel(in_word_ms=100, word_start_ms=200, line_start_ms=700, spread=0)
    keys = split_keys("ab = c1\n  x.y_z")
    assert typing.delays(keys, 0) == (700, 100, 100, 100, 100, 200, 100, 100, 700, 100, 200, 100, 100)


def test_delays_are_log_normal_around_their_mean():
    delays = TypingModel(in_word_ms=222, word_start_ms=222, line_start_ms=222, spread=0.5).delays(
        split_keys("x" * 20_000), 3
    )
    logs = [math.log(delay) for delay in delays]
    mean = sum(logs) / len(logs)
    assert sum(delays) / len(delays) == pytest.approx(222, rel=0.02)
    assert math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs)) == pytest.approx(0.5, rel=0.02)


def test_the_mean_in_prose_is_239_ms():
    delays = TypingModel(spread=0).delays(split_keys("lorem " * 500), 0)[1:]
    assert sum(delays) / len(delays) == pytest.approx(239, abs=1)
