import time

import pytest

from dg_lsp.server.workspace_index import LOOKED_AT, Import, imports_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import a\n", [Import("a", 0, "", "a")]),
        ("import a.b as c, d\n", [Import("a.b", 0, "", "c"), Import("d", 0, "", "d")]),
        ("from a.b import c as d, e\n", [Import("a.b", 0, "c", "d"), Import("a.b", 0, "e", "e")]),
        ("from . import a\n", [Import("", 1, "a", "a")]),
        ("from ..a import *\n", [Import("a", 2, "*", "*")]),
        ("from a import (  # why\n    b,\n    c,\n)\n", [Import("a", 0, "b", "b"), Import("a", 0, "c", "c")]),
        ("from a import b, \\\n    c\n", [Import("a", 0, "b", "b"), Import("a", 0, "c", "c")]),
        ("if X:\n    from a import b\n", [Import("a", 0, "b", "b")]),
        ("from a import b  # noqa\r\nimport c\r\n", [Import("a", 0, "b", "b"), Import("c", 0, "", "c")]),
        ("from a import (b,\n", []),
        ("from a import\nimport b\n", [Import("b", 0, "", "b")]),
        ("import a; x = 1\n", []),
        ("important = 1\nfrom_here = 2\n", []),
    ],
)
def test_statement_by_statement(text, expected):
    assert list(imports_of(text)) == expected


def test_what_is_half_written_hides_nothing_else():
    assert [one.name for one in imports_of("from a import b\n\ndef f(:\n  x = (\nfrom c import d\n")] == ["b", "d"]


def test_a_giant_buffer_is_read_at_its_beginning_only():
    assert imports_of("#" * LOOKED_AT + "\nimport a\n") == ()
    began = time.monotonic()
    imports_of("from a import (" * 2600)
    assert time.monotonic() - began < 5
