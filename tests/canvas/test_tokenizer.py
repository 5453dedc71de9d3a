from unittest.mock import Mock

from dg_lsp.backends.scripted import ByteTokenizer
from dg_lsp.canvas.layout import MAX_CHARS, CachingTokenizer


def test_a_text_is_tokenized_once():
    inner = Mock(wraps=ByteTokenizer())
    tokenizer = CachingTokenizer(inner, capacity=2)
    for text in ("a", "b", "a", "b", "c", "a"):
        assert tokenizer.encode(text).tolist() == ByteTokenizer().encode(text).tolist()
    assert [call.args for call in inner.encode.call_args_list] == [("a",), ("b",), ("c",), ("a",)]


def test_a_text_longer_than_a_prompt_is_not_kept():
    inner = Mock(wraps=ByteTokenizer())
    tokenizer, text = CachingTokenizer(inner), "a" * (MAX_CHARS + 1)
    for _ in range(2):
        assert len(tokenizer.encode(text)) == len(text)
    assert inner.encode.call_count == 2
