import math

import pytest

from dg_lsp.bench.replay.keys import Typist, keys_of

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
def test_a_line_end_brings_the_indentation(text, keys):
    assert list(keys_of(text)) == keys
    assert "".join(keys_of(text)) == text


def test_pauses_are_where_lines_and_words_begin():
    typist = Typist(in_word_ms=100, word_start_ms=200, line_start_ms=700, spread=0)
    keys = keys_of("ab = c1\n  x.y_z")
    assert typist.delays(keys, 0) == (700, 100, 100, 100, 100, 200, 100, 100, 700, 100, 200, 100, 100)


def test_one_seed_is_one_typist():
    keys = keys_of(CODE)
    assert Typist().delays(keys, 1) == Typist().delays(keys, 1)
    assert Typist().delays(keys, 1) != Typist().delays(keys, 2)
    assert Typist().delays(keys_of("abc"), 1) != Typist().delays(keys_of("abd"), 1)


def test_times_are_log_normal_about_their_mean():
    delays = Typist(in_word_ms=222, word_start_ms=222, line_start_ms=222, spread=0.5).delays(keys_of("x" * 20_000), 3)
    logs = [math.log(delay) for delay in delays]
    mean = sum(logs) / len(logs)
    assert sum(delays) / len(delays) == pytest.approx(222, rel=0.02)
    assert math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs)) == pytest.approx(0.5, rel=0.02)


def test_words_take_239_ms_a_key_on_average():
    delays = Typist(spread=0).delays(keys_of("lorem " * 500), 0)[1:]
    assert sum(delays) / len(delays) == pytest.approx(239, abs=1)


def test_twice_the_speed_is_half_the_time():
    keys = keys_of(CODE)
    slow, fast = Typist(), Typist(speed=2)
    assert fast.delays(keys, 5) == pytest.approx([delay / 2 for delay in slow.delays(keys, 5)])
    assert fast.reaction_ms == slow.reaction_ms


def test_a_text_without_keys_takes_no_time():
    assert Typist().delays((), 0) == ()
