import numpy as np
import pytest

pytest.importorskip("tokenizers")

from dg_lsp.training.documents import Documents, Header
from dg_lsp.training.store import build_store, load_store
from dg_lsp.training.vocabulary import END_OF_MIDDLE, FILE, MIDDLE, NUM_SPECIALS, PREFIX, SUFFIX


def test_a_cut_at_a_line_start_is_a_slice_of_the_file(toy):
    store = load_store(toy.root / "train")
    assert store.num_lines > 1000
    for line in range(0, store.num_lines, 37):
        file = store.file_of_line(line)
        at, token = int(store.line_chars[line]), int(store.line_tokens[line])
        tokens = store.tokens[store.token_starts[file] : store.token_starts[file + 1]]
        for text, ids in ((toy.texts[file][:at], tokens[:token]), (toy.texts[file][at:], tokens[token:])):
            assert toy.tokenizer.encode(text, add_special_tokens=False).ids == ids.tolist()


def test_wide_characters_and_blank_runs_keep_line_starts(toy):
    text = "x = 'é😋'\n\n\n   \n\ty = 1\n# 東京\nz\n"
    store = build_store([text], toy.tokenizer)
    starts = [0, text.index("   \n"), text.index("\ty"), text.index("#"), text.index("z\n")]
    assert set(store.line_chars.tolist()) <= set(starts)
    assert {0, text.index("#"), text.index("z\n")} <= set(store.line_chars.tolist())


def test_documents_are_suffix_prefix_middle_of_their_file(toy):
    """Without a tight room, S, P and M put together again are a stretch of the file, tokenized apart."""
    documents = Documents(load_store(toy.root / "train"), toy.tokenizer, 100_000, 32, seed=5)
    whole = 0
    for document in documents.fims(300):
        ids = document.ids.tolist()
        at = ids.index(PREFIX)
        suffix, prefix, middle = ids[1:at], ids[at + 1 : document.middle - 1], ids[document.middle : -1]
        assert (ids[0], ids[document.middle - 1], ids[-1]) == (SUFFIX, MIDDLE, END_OF_MIDDLE)
        assert 0 < len(middle) <= 32
        parts = [toy.tokenizer.decode(part, skip_special_tokens=False) for part in (prefix, middle, suffix)]
        assert any("".join(parts) in text for text in toy.texts)
        for text, tokens in zip(parts, (prefix, middle, suffix), strict=True):
            whole += toy.tokenizer.encode(text, add_special_tokens=False).ids == tokens
        assert min(prefix + middle + suffix) >= NUM_SPECIALS
    # a prompt cut inside a line for lack of room may start in the middle of a word
    assert whole > 0.97 * 900


def test_prompts_keep_their_room_and_lose_whole_lines_on_the_outside(toy):
    documents = Documents(load_store(toy.root / "train"), toy.tokenizer, 80, 32, seed=5)
    lengths = []
    for document in documents.fims(400):
        ids = document.ids.tolist()
        at = ids.index(PREFIX)
        lengths.append(document.middle - 3)
        suffix = toy.tokenizer.decode(ids[1:at])
        prefix = toy.tokenizer.decode(ids[at + 1 : document.middle - 1])
        assert "\n" not in suffix.rstrip("\n") or suffix.endswith("\n")
        if "\n" in prefix.rstrip("\n"):
            assert any(text.startswith(prefix) or "\n" + prefix in text for text in toy.texts)
    assert max(lengths) <= 80
    assert np.quantile(lengths, 0.9) > 60


def test_plain_documents_fill_exactly_the_room_they_have(toy):
    documents = Documents(load_store(toy.root / "train"), toy.tokenizer, 100, 32, seed=6)
    for room in (24, 60, 150):
        lengths = [len(documents.plain(room).ids) for _ in range(40)]
        assert max(lengths) == room
        assert np.median(lengths) == room


@pytest.mark.parametrize("header", [Header.PATH, Header.NEIGHBOUR])
def test_a_header_stands_between_suffix_and_prefix_and_takes_its_room(toy, header):
    names = [f"package/{'a' if i < 10 else 'b'}/file{i:02}.py" for i in range(20)]
    store = build_store(toy.texts[:20], toy.tokenizer, names)
    documents = Documents(store, toy.tokenizer, 100, 32, seed=5, header=header)
    said = set()
    for document in documents.fims(400):
        ids = document.ids.tolist()
        assert document.middle - 3 <= 100
        if FILE in ids:
            header_ids = ids[ids.index(FILE) + 1 : ids.index(PREFIX)]
            assert len(header_ids) < 25
            said.add(toy.tokenizer.decode(header_ids))
        else:
            assert header is Header.NEIGHBOUR  # the first file of a folder has none before it
    lines = {text.split("\n")[0] for text in said if "\n" in text}
    expected = set(names) if header is Header.PATH else set(names) - {names[9], names[19]}
    assert lines
    assert lines <= expected
    has_text = any(text.split("\n", 1)[1] for text in said if "\n" in text)
    assert has_text == (header is Header.NEIGHBOUR)
