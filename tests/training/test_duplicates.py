import random
from collections import Counter

import pytest

pytest.importorskip("datasketch")

from dg_lsp.training.corpus import SourceFile
from dg_lsp.training.duplicates import deduplicate
from dg_lsp.training.near_duplicates import NearDuplicates, signature
from dg_lsp.training.reading import Read
from dg_lsp.training.words import WordHashes, word_hashes


def text(seed, num_lines=60):
    """Lines that no other seed has."""
    rng = random.Random(seed)
    words = [f"w{seed}x{i}" for i in range(80)]
    return "".join(f"    {rng.choice(words)} = {rng.choice(words)}({rng.choice(words)})\n" for _ in range(num_lines))


def signed(source):
    return signature(word_hashes(source, WordHashes()))


def read(path, source):
    return Read(SourceFile("p", path, source), signed(source))


def renamed(source, every):
    """One line of `every` rewritten."""
    lines = source.splitlines(keepends=True)
    return "".join(f"    other_{i} = None\n" if i % every == 0 else line for i, line in enumerate(lines))


def test_equal_places_of_signatures_estimate_the_shared_runs():
    source = text(1, 400)
    same, near, half, other = (
        signed(t) for t in (source.upper(), renamed(source, 40), renamed(source, 4), text(2, 400))
    )
    shares = [float((signed(source) == s).mean()) for s in (same, near, half, other)]
    assert shares[0] == 1
    assert 0.8 < shares[1] < 0.98
    assert 0.2 < shares[2] < 0.65
    assert shares[3] < 0.05


def test_a_near_copy_is_known_and_a_new_file_is_learned():
    known = NearDuplicates()
    assert not known.is_copy(signed(text(1)))
    assert not known.is_copy(signed(text(2)))
    assert known.is_copy(signed(text(2)))
    assert known.is_copy(signed(renamed(text(1, 60), 50)))
    assert not known.is_copy(signed(""))
    assert known.is_copy(signed(""))


def test_the_first_of_every_group_is_kept_and_the_others_are_counted_by_reason():
    first, second = text(1), text(2)
    patchwork = "".join(a + b for a, b in zip(first.splitlines(True)[:20], second.splitlines(True)[:20], strict=True))
    files = [read("a", first), read("b", second), read("c", first), read("d", renamed(first, 50)), read("e", patchwork)]
    counts: Counter[str] = Counter()
    kept = deduplicate([*files, read("f", text(3))], counts)
    assert [file.path for file in kept] == ["a", "b", "f"]
    assert counts == {"exact duplicate": 1, "near duplicate": 1, "repeated lines": 1}
