"""Magics of a cell's code, and the code of a notebook around a cell."""

import pytest

from dg_lsp.context.document import Snapshot
from dg_lsp.server.documents import CellCode, joined


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%matplotlib inline\nimport os", "\nimport os"),
        ("!pip install \\\n  numpy\nx = 1", "\n\nx = 1"),
        ("  %cd /tmp\r\ndf.head?\r\n?df\r\nx", "\r\n\r\n\r\nx"),
        ("%%time\nx = 1", "\nx = 1"),
        ("names = !ls *.py\nfor name in names:", "names = []\nfor name in names:"),
        ("x = %timeit -o f()", "x = []"),
        # code
        ("a = (b\n  % c != d\n  != e)\ny = x % z", None),
        ('sql = """\n%s\n!x\n"""', None),
        ("print('50 %', '!')  # why?", None),
    ],
)
def test_blanks_stand_for_magics(cell, code):
    found = CellCode.of(cell, "python").text
    assert len(found) == len(cell)
    assert [line.rstrip() for line in found.split("\n")] == (cell if code is None else code).splitlines()


@pytest.mark.parametrize(
    ("magic", "language"),
    [("bash", "shellscript"), ("html", "html"), ("sql", "sql"), ("timeit -n 3", "python"), ("other", "plaintext")],
)
def test_a_cell_magic_has_the_language_of_its_cell(magic, language):
    found = CellCode.of(f"%%{magic}\necho !x", "python")
    assert found.language == language
    assert found.text.strip() == "echo !x"


def test_lines_of_magics_are_known_and_can_be_kept():
    cell = "%time f()\nx = 1\n!ls \\\n  -l\n"
    code = CellCode.of(cell, "python")
    magic = [code.is_magic(cell.index(text)) for text in ("time", "x", "ls", "-l")]
    assert magic == [True, False, True, True]
    kept = code.with_lines(3, cell.index("x")).text
    assert kept.split("\n")[:2] == ["%time f()", "x = 1"]
    assert "ls" not in kept


def test_cells_of_the_same_language_are_joined_by_blank_lines():
    cells = [
        CellCode.of(cell, language)
        for cell, language in [
            ("%pip install x\n\nimport os\n\n", "python"),
            ("%%bash\nls", "python"),
            ("\n  \n", "python"),
            ("ls", "shellscript"),
            ("  x = 1", "python"),
        ]
    ]
    own = Snapshot("cell:1", 3, "\nprint(x)\n", "python", "file:///a.ipynb")
    found = joined(own, cells, cells[-1:])
    assert found.text == "import os\n\n  x = 1\n\n\nprint(x)\n\n\n  x = 1"
    assert found.alone() == own
    assert found.text[found.num_before : found.end] == own.text
    assert joined(own, [], []) == own
