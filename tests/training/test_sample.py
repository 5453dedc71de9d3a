"""A 2 MB sample of the corpus, real code under permissive licences: the filters leave it alone, copies are found."""

import pytest

pytest.importorskip("datasketch")

import json
import random
from collections import Counter

from dg_lsp.training.benchmarks import read_hashes
from dg_lsp.training.corpus import SourceFile, decoded, is_code_path, refusal
from dg_lsp.training.duplicates import deduplicate
from dg_lsp.training.licences import is_allowed
from dg_lsp.training.reading import Reader
from dg_lsp.training.wheels import PACKAGES, read_pins

from .conftest import SAMPLE, sample_files


@pytest.fixture(scope="module")
def files():
    return sample_files()


@pytest.fixture(scope="module")
def reads(files):
    reader = Reader(read_hashes())
    sources = {}
    for file in files:
        sources.setdefault(file.package, []).append((file.path, file.text.encode()))
    found = [read for package, members in sources.items() for read in reader.read(package, members)]
    assert reader.counts == {"seen": len(files)}  # nothing was dropped, no run of a benchmark found
    return found


def test_every_package_of_the_sample_is_pinned_permissive_and_has_its_licence_beside_it(files):
    notices = json.loads((SAMPLE / "licences.json").read_text())
    pins = read_pins(PACKAGES)
    assert {file.package for file in files} == set(notices)
    for package, notice in notices.items():
        assert is_allowed(notice["licence"])
        assert pins.versions[package] == notice["version"]
        assert package not in pins.held_out
        assert "copyright" in "".join(notice["texts"].values()).lower()


def test_the_sample_is_as_large_as_it_says_and_clean(files):
    assert 1.8e6 < sum(len(file.text.encode()) for file in files) < 2.2e6
    for file in files:
        assert is_code_path(file.path)
        assert refusal(file.text) is None
        assert decoded(file.text.encode()) == file.text


def test_the_sample_has_no_copies_and_ones_slipped_in_are_found(files, reads):
    counts: Counter[str] = Counter()
    assert deduplicate(reads, counts) == files
    assert not counts
    copies = []
    for file in random.Random(1).sample([file for file in files if file.text.count("\n") > 100], 20):
        lines = file.text.splitlines(keepends=True)
        lines[10:12] = ["# changed by a vendor\n"]
        copies.append((file.path, "".join(lines).encode()))
    reader = Reader(read_hashes())
    kept = deduplicate([*reads, *reader.read("vendor", copies)], counts)
    assert kept == files
    assert counts["near duplicate"] == 20


def test_a_benchmarks_text_inside_a_real_file_is_refused(files):
    reader = Reader(read_hashes())
    task = "# Write a python function to remove first and last occurrence of a given character from the string.\n"
    assert not list(reader.read("p", [("a.py", (files[0].text + task).encode())]))
    assert reader.counts == {"seen": 1, "benchmark runs": 1}
    assert isinstance(next(reader.read("p", [("a.py", files[0].text.encode())])).file, SourceFile)
