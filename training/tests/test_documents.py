"""Fill-in-the-middle documents."""

from collections import Counter

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from dg_training.documents import DocumentStream, by_language, language_shares, pick_span, sample_texts
from dg_training.store import CorpusFile
from dg_training.tokenizer import END_OF_MIDDLE, MIDDLE, PREFIX, SPECIAL_TOKENS, SUFFIX, Vocabulary

from .conftest import corpus_files, toy_source

BLOCK = ["    if ready(first, second):", "        first += 1", "", "        return first", "    return None"]


def documents(toy, num, max_prompt):
    stream = DocumentStream(corpus_files(toy.texts[:50]), toy.tokenizer, max_prompt, max_middle=32, seed=5)
    return [stream.infill_document() for _ in range(num)]


def parts(document):
    """Suffix, prefix and middle."""
    ids = document.ids.tolist()
    at = ids.index(PREFIX)
    return ids[1:at], ids[at + 1 : document.middle - 1], ids[document.middle : -1]


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
    for document in documents(toy, 300, 100_000):
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


def test_a_prompt_loses_its_outer_ends(toy):
    lengths = []
    for document in documents(toy, 400, 80):
        suffix, prefix = (toy.tokenizer.decode(part) for part in parts(document)[:2])
        lengths.append(document.middle - 3)
        assert any(prefix in text for text in toy.texts)
        assert any(suffix in text for text in toy.texts)
    assert max(lengths) <= 80
    assert np.quantile(lengths, 0.9) > 60


JOINED = "def total(count):\n    if count:\n        return sum_of(count)\n    return None\n"


def test_a_middle_begins_at_a_token_boundary_of_the_whole_text():
    """SmolLM's expression joins a line end with the indentation behind it; a prompt ends before such a token."""
    tokens = (*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "\u010a\u0120", "\u010a\u0120\u0120")
    merges = (("\u010a", "\u0120"), ("\u010a\u0120", "\u0120"))
    kinds = (*([3] * len(SPECIAL_TOKENS)), *([1] * (len(tokens) - len(SPECIAL_TOKENS))))
    tokenizer = Vocabulary(tokens, kinds, merges, "smollm", None, END_OF_MIDDLE).tokenizer()
    whole = tokenizer.encode(JOINED, add_special_tokens=False).ids
    stream = DocumentStream(corpus_files([JOINED]), tokenizer, 1000, 100, 3)
    num_joined = 0
    for document in (stream.infill_document() for _ in range(300)):
        _, prefix, middle = parts(document)
        ids = [*prefix, *middle[:-4]]  # the end of a middle is cut apart from what follows
        assert any(ids == whole[at : at + len(ids)] for at in range(len(whole)))
        num_joined += tokenizer.decode(middle[:1]).startswith("\n ")
    assert num_joined > 20


def test_every_language_has_its_share(toy):
    files = [CorpusFile("a", f"{i}.{suffix}", toy.texts[i]) for i in range(9) for suffix in ("py", "go", "ts")]
    shares = language_shares(by_language(files))
    assert set(shares) == {"python", "go", "typescript"}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["python"] > shares["typescript"] > shares["go"]
    chars = Counter[str]()
    for text in sample_texts(files, 5_000):
        chars[text] += len(text)
    assert 1_000 < sum(chars.values()) < 12_000


def test_a_suffix_has_up_to_a_third_of_the_prompt(toy):
    files = corpus_files([toy_source(seed, 400) for seed in range(4)])
    stream, shares = DocumentStream(files, toy.tokenizer, 300, 32, 1), []
    for _ in range(300):
        document = stream.infill_document()
        suffix = document.ids.tolist().index(PREFIX) - 1
        if document.middle > 200:
            shares.append(suffix / (document.middle - 3))
    # a prefix of whole lines may be shorter than its room
    assert 0.28 < np.quantile(shares, 0.95) < 0.36
    assert np.quantile(shares, 0.05) < 0.05
