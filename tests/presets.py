"""A preset of one small file, for tests."""

from dg_lsp.models.registry import Preset


def make(size, **changes):
    facts = {
        "name": "tiny",
        "repository": "somebody/Tiny-GGUF",
        "patterns": ("Tiny.gguf",),
        "quantization": "Q8_0",
        "licence": "MIT",
        "note": "for tests",
        "sources": ("a book",),
    }
    return Preset(**(facts | {"size": size} | changes))
