"""Fill-in-the-middle documents."""

import numpy as np

from dg_lsp.training.documents import DocumentStream, pick_span
from dg_lsp.training.store import build_store, load_store
from dg_lsp.training.tokenizer import END_OF_MIDDLE, MIDDLE, PREFIX, SPECIAL_TOKENS, SUFFIX

BLOCK = ["    if ready(first, second):", "        first += 1", "", "        return first", "    return None"]


def documents(toy, max_prompt, max_middle=32, seed=5):
    return DocumentStream(load_store(toy.root / "train"), toy.tokenizer, max_prompt, max_middle, seed)


def parts(document):
    """Suffix, prefix and middle."""
    ids = document.ids.tolist()
    at = ids.index(PREFIX)
    return ids[1:at], ids[at + 1 : document.middle - 1], ids[document.middle : -1]


def test_text_cut_at_a_line_start_is_a_slice_of_the_tokens(toy):
    texts = ["x = 'é😋'\n\n\n   \n\ty = 1\n# 東京\nz\n", *toy.texts[:20]]
    store = build_store(texts, toy.tokenizer)
    assert store.num_lines > 500
    for line in [*range(5), *range(5, store.num_lines, 37)]:
        file = store.file_of_line(line)
        at, token = int(store.line_chars[line]), int(store.line_tokens[line])
        assert at == 0 or texts[file][at - 1] == "\n" != texts[file][at]
        tokens = store.tokens[store.token_starts[file] : store.token_starts[file + 1]]
        for text, ids in ((texts[file][:at], tokens[:token]), (texts[file][at:], tokens[token:])):
            assert toy.tokenizer.encode(text, add_special_tokens=False).ids == ids.tolist()


def test_spans_are_those_of_editor_requests():
    rng, text = np.random.default_rng(0), "\n".join(BLOCK)
    spans = [pick_span(BLOCK, rng) for _ in range(4000)]
    assert all(0 <= start < end <= len(text) for start, end in spans)
    chosen = [text[start:end] for start, end in spans]
    body = "\n".join(BLOCK[1:4])
    for span in ("ready(first, second):", BLOCK[0], BLOCK[0][4:], "\n".join(BLOCK[:2]), body, body.lstrip()):
        assert span in chosen
    starts = {start for start, _ in spans} - {0, 4}
    assert any(text[start - 1].isalnum() and text[start].isalnum() for start in starts)  # inside a word
    assert np.mean([end == len(BLOCK[0]) for _, end in spans]) > 0.45


def test_a_document_is_suffix_prefix_and_middle_of_a_file(toy):
    num_equal = 0
    for document in documents(toy, 100_000).infill_documents(300):
        ids, (suffix, prefix, middle) = document.ids.tolist(), parts(document)
        assert (ids[0], ids[document.middle - 1], ids[-1]) == (SUFFIX, MIDDLE, END_OF_MIDDLE)
        assert 0 < len(middle) <= 32
        assert min(prefix + middle + suffix) >= len(SPECIAL_TOKENS)
        texts = [toy.tokenizer.decode(part, skip_special_tokens=False) for part in (prefix, middle, suffix)]
        assert any("".join(texts) in text for text in toy.texts)
        for text, tokens in zip(texts, (prefix, middle, suffix), strict=True):
            num_equal += toy.tokenizer.encode(text, add_special_tokens=False).ids == tokens
    # a prompt that is cut inside a line may start inside a word
    assert num_equal > 0.97 * 900


def test_a_prompt_loses_whole_lines_at_its_outer_ends(toy):
    lengths = []
    for document in documents(toy, 80).infill_documents(400):
        suffix, prefix = (toy.tokenizer.decode(part) for part in parts(document)[:2])
        lengths.append(document.middle - 3)
        assert "\n" not in suffix.rstrip("\n") or suffix.endswith("\n")
        if "\n" in prefix.rstrip("\n"):
            assert any(text.startswith(prefix) or "\n" + prefix in text for text in toy.texts)
    assert max(lengths) <= 80
    assert np.quantile(lengths, 0.9) > 60
