import pytest

from dg_lsp.backends.scripted import ByteTokenizer
from dg_lsp.canvas.tokenizer import CachingTokenizer


class Counted(ByteTokenizer):
    def __init__(self):
        super().__init__()
        self.asked = []

    def encode(self, text):
        self.asked.append(text)
        return super().encode(text)


def test_a_text_is_tokenized_once():
    counted = Counted()
    tokenizer = CachingTokenizer(counted, capacity=2)
    for text in ("a", "b", "a", "b", "c", "a"):
        assert tokenizer.encode(text).tolist() == ByteTokenizer().encode(text).tolist()
    assert counted.asked == ["a", "b", "c", "a"]


def test_what_is_handed_out_again_cannot_be_changed():
    ids = CachingTokenizer(ByteTokenizer()).encode("a")
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_all_else_is_the_inner_ones():
    inner = ByteTokenizer()
    tokenizer = CachingTokenizer(inner)
    assert tokenizer.decode(inner.encode("a\u00e9")) == "a\u00e9".encode()
    assert tokenizer.special("<mask>") == inner.special("<mask>") is not None
