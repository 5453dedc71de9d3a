import pytest

from dg_lsp.backends.scripted import ByteTokenizer
from dg_lsp.canvas.tokenizer import CachingTokenizer


class CountingTokenizer(ByteTokenizer):
    def __init__(self):
        super().__init__()
        self.encoded = []

    def encode(self, text):
        self.encoded.append(text)
        return super().encode(text)


def test_a_text_is_tokenized_once():
    counted = CountingTokenizer()
    tokenizer = CachingTokenizer(counted, capacity=2)
    for text in ("a", "b", "a", "b", "c", "a"):
        assert tokenizer.encode(text).tolist() == ByteTokenizer().encode(text).tolist()
    assert counted.encoded == ["a", "b", "c", "a"]


def test_cached_ids_are_read_only():
    ids = CachingTokenizer(ByteTokenizer()).encode("a")
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_decoding_and_special_tokens_are_those_of_the_inner_tokenizer():
    inner = ByteTokenizer()
    tokenizer = CachingTokenizer(inner)
    assert tokenizer.decode(inner.encode("a\u00e9")) == "a\u00e9".encode()
    assert tokenizer.special("<mask>") == inner.special("<mask>") is not None
