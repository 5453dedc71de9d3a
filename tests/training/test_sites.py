"""The sites are drawn from the kept sample of real code."""

import ast
import gzip
import json

import pytest

from dg_lsp.training.corpus import SourceFile
from dg_lsp.training.sites import MAX_TOKENS, CodeLines, Kind, Split, held_out_sites, write_sites

from .conftest import sample_files

COUNTS = {Kind.LINE_END: 50, Kind.WHOLE_LINE: 30, Kind.BLOCK: 20}
SOURCE = '''"""A module."""

import os

LIMIT = 10  # of files


def names(folder, limit=LIMIT):
    """Says what is there."""
    text = """
    two lines
    """
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        print(path, text)

    if limit:
        return limit
    # nothing

    try:
        folder.close()

    finally:
        print(limit)
    return call(
        folder,
        limit,
    )
'''


@pytest.fixture(scope="module")
def files():
    return sample_files()[::5]


@pytest.fixture(scope="module")
def split_sites(files):
    return {split: held_out_sites(files, str.split, split, COUNTS) for split in Split}


def test_every_kind_has_its_number_and_the_draw_is_the_same_every_time(files, split_sites):
    for sites in split_sites.values():
        assert {kind: sum(site.kind == kind for site in sites) for kind in Kind} == COUNTS
    assert held_out_sites(files, str.split, Split.TUNE, COUNTS) == split_sites[Split.TUNE]


def test_no_line_is_asked_for_twice_within_or_between_the_sets(split_sites):
    lines = [
        (site.file.path, site.file.package, number)
        for sites in split_sites.values()
        for site in sites
        for number in range(site.first, site.last + 1)
    ]
    assert len(lines) == len(set(lines))


def test_what_is_taken_out_is_code_that_ends_with_its_line(split_sites):
    for site in (site for sites in split_sites.values() for site in sites):
        text = site.file.text
        want, before = text[site.start : site.end], text[: site.start].rpartition("\n")[2]
        assert text[site.end] == "\n"
        assert want.strip()
        assert len(want.split()) <= MAX_TOKENS[site.kind]
        assert not any(line.lstrip().startswith(("#", '"""', "'''")) for line in want.split("\n")[1:])
        assert bool(before.strip()) == (site.kind is Kind.LINE_END)
        assert (want.count("\n") > 0) == (site.kind is Kind.BLOCK)


def test_blocks_are_whole_statements_up_to_a_dedent_or_a_blank_line(split_sites):
    for site in split_sites[Split.REPORT]:
        if site.kind is not Kind.BLOCK:
            continue
        lines = site.file.text.split("\n")
        block = lines[site.first : site.last + 1]
        indent = len(block[0]) - len(block[0].lstrip())
        assert 2 <= len(block) <= 8
        assert all(line.startswith(" " * indent) and line.strip() for line in block)
        after = lines[site.last + 1]
        assert not after.strip() or len(after) - len(after.lstrip()) < indent
        ast.parse("async def f():\n while 1:\n" + "\n".join("  " + line[indent:] for line in block))


def test_prose_is_no_code():
    code = CodeLines(SourceFile("p", "a.py", SOURCE))
    assert {n + 1 for n in code.prose} == {1, 5, 9, 10, 11, 12, 19}


def test_blocks_begin_after_a_colon_or_a_blank_line_and_hold_what_they_begin():
    code = CodeLines(SourceFile("p", "a.py", SOURCE))
    blocks = {n + 1: last + 1 for n in range(1, len(code.lines)) if (last := code.block_end(n)) is not None}
    assert blocks == {14: 15}  # not 17: a comment follows; not 21: the try goes on; not 24: `finally` is no statement


def test_the_file_has_the_format_of_humaneval_infilling(split_sites, tmp_path):
    sites = split_sites[Split.TUNE]
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_sites(tmp_path / name, sites)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    rows = [json.loads(line) for line in gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()]
    assert len({row["task_id"] for row in rows}) == len(rows) == 100
    for row, site in zip(rows, sites, strict=True):
        assert row["prompt"] + row["canonical_solution"] + row["suffix"] == site.file.text
        assert row["test"] == row["entry_point"] == ""
        assert row["kind"] in {"line-end", "whole-line", "block"}
        assert row["path"] == f"{site.file.package}/{site.file.path}"


def test_too_few_places_are_an_error(files):
    with pytest.raises(ValueError, match="too few"):
        held_out_sites(files[:1], str.split, counts={**COUNTS, Kind.BLOCK: 5000})


def test_what_does_not_parse_is_passed_over(files):
    broken = SourceFile("p", "b.py", "def f(:\n" * 50)
    assert held_out_sites([broken, *files], str.split, counts=COUNTS)
