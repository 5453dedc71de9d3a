import pytest

from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.repetition import BufferTokens, Repetition

NOTHING = token_ids([])


def following(before, fill=(), after=()):
    echoed = Repetition(token_ids(before), token_ids(after)).following(token_ids(fill))
    return echoed and echoed.token


@pytest.mark.parametrize(
    ("before", "fill", "after", "expected"),
    [
        pytest.param(
            [1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3], [], [], 4, id="what followed the last three twice before"
        ),
        pytest.param([1, 2, 3, 4, 9, 1, 2, 3], [], [], None, id="three tokens seen once are chance"),
        pytest.param([1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5], [], [], 6, id="five tokens seen once are not"),
        pytest.param([1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2], [3], [], 4, id="the fill belongs to what is compared"),
        pytest.param(
            [7, 1, 2, 3], [], [5, 1, 2, 3, 8, 6, 1, 2, 3, 8], 8, id="what stands after the cursor counts, too"
        ),
        pytest.param([2, 3, 4, 9, 2, 3, 4, 8, 2, 3], [], [], None, id="two tokens say too little"),
        pytest.param([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [], [], None, id="two different followers are no echo"),
        pytest.param(
            [0, 1, 2, 3, 4, 9, 0, 1, 2, 3, 4, 7, 1, 2, 3, 5, 0, 1, 2, 3], [], [], 4, id="a longer match decides"
        ),
        pytest.param([1, 2, 3], [], [], None, id="nothing before"),
        pytest.param([1, 2, 3], [], [1, 2, 3], None, id="nothing follows across the border"),
        pytest.param([], [], [], None, id="an empty buffer"),
        pytest.param([], [], [1, 2, 3, 4], None, id="nothing before the cursor"),
    ],
)
def test_what_follows(before, fill, after, expected):
    assert following(before, fill, after) == expected


def test_longer_and_more_matches_are_surer():
    once = Repetition(token_ids([1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5]), NOTHING).following(NOTHING)
    twice = Repetition(token_ids([1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3]), NOTHING).following(NOTHING)
    longer = Repetition(token_ids([9, 8, 1, 2, 3, 4, 5, 6, 9, 8, 1, 2, 3, 4, 5]), NOTHING).following(NOTHING)
    assert once and twice and longer
    assert 0 < once.confidence < min(twice.confidence, longer.confidence) < 1


class Words:
    """One id per word; counts what it is asked."""

    def __init__(self):
        self.ids, self.asked = {}, []

    def encode(self, text):
        self.asked.append(text)
        return token_ids([self.ids.setdefault(word, len(self.ids)) for word in text.split()])

    def decode(self, _ids):
        return b""


def test_a_model_may_ask_for_more():
    assert (
        Repetition(token_ids([1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3]), NOTHING, min_match=4).following(NOTHING) is None
    )
    longer = token_ids([0, 1, 2, 3, 4, 9, 0, 1, 2, 3, 4, 8, 0, 1, 2, 3])
    assert Repetition(longer, NOTHING, min_match=4).following(NOTHING)


def test_only_the_first_line_of_a_fill_hears_the_buffer():
    before = token_ids([1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 8, 1, 2, 3])
    echo = Repetition(before, NOTHING, ends_line=lambda token: token == 4)
    assert echo.run(NOTHING, 8).tolist() == [4]
    assert echo.following(token_ids([4])) is None


def test_a_keystroke_tokenizes_one_line():
    words = Words()
    buffers = BufferTokens(words)
    text = "a b c d\n" + "x y\n" * 50 + "a b c d\n" + "a b c"
    assert buffers.repetition(text, len(text)).following(NOTHING).token == words.ids["d"]
    before = len(words.asked)
    buffers.repetition(text + " d", len(text) + 2)
    assert words.asked[before:] == ["a b c d"]


def test_only_the_lines_after_the_cursor_that_may_be_seen_are_heard():
    words = Words()
    text = "a b c\nother\na b c d\nx\na b c d\n"
    offset = len("a b c")
    assert BufferTokens(words).repetition(text, offset).following(NOTHING).token == words.ids["d"]
    assert BufferTokens(words).repetition(text, offset, suffix_lines=1).following(NOTHING) is None


def test_a_run_goes_on_until_the_buffer_is_not_sure():
    echo = Repetition(token_ids([1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5, 6, 8, 1, 2, 3]), NOTHING)
    assert echo.run(NOTHING, 8).tolist() == [4, 5, 6]
    assert echo.run(NOTHING, 2).tolist() == [4, 5]
    assert echo.run(token_ids([4, 7]), 8).tolist() == []
