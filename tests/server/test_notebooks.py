"""Notebooks that a client synchronises: their cells in order, their magics, and the code of the cells around one.

`soak/messages.py` compares the texts of cells that are opened, changed and closed in any order.
"""

import pytest
from lsprotocol import types

from dg_lsp.context.exclusion import ExclusionReason
from dg_lsp.server import app
from dg_lsp.server.documents import CellCode
from dg_lsp.settings import PrivacySettings

from .conftest import Editor

CODE, MARKUP = types.NotebookCellKind.Code, types.NotebookCellKind.Markup
URI = "file:///project/a.ipynb"


class NotebookEditor(Editor):
    """An editor of notebooks, whose cells have numbers or names as URIs."""

    def open(self, *texts, uri=URI):
        cells = [types.NotebookCell(CODE, f"{uri}#{number}") for number in range(len(texts))]
        items = [types.TextDocumentItem(f"{uri}#{number}", "python", 1, text) for number, text in enumerate(texts)]
        notebook = types.NotebookDocument(uri, "jupyter-notebook", 1, cells)
        app.did_open_notebook(self.server, types.DidOpenNotebookDocumentParams(notebook, items))

    def change(self, uri=URI, **cells):
        change = types.NotebookDocumentChangeEvent(cells=types.NotebookDocumentCellChanges(**cells))
        identifier = types.VersionedNotebookDocumentIdentifier(2, uri)
        app.did_change_notebook(self.server, types.DidChangeNotebookDocumentParams(identifier, change))

    def splice(self, start, num_deleted, names=(), opened=(), closed=(), kind=CODE, uri=URI):
        """Replaces cells by those with these names; `opened` has names, languages and texts."""
        cells = [types.NotebookCell(kind, f"{uri}#{name}") for name in names]
        items = [types.TextDocumentItem(f"{uri}#{name}", language, 1, text) for name, language, text in opened]
        gone = [types.TextDocumentIdentifier(f"{uri}#{name}") for name in closed]
        array = types.NotebookCellArrayChange(start, num_deleted, cells)
        self.change(uri, structure=types.NotebookDocumentCellChangeStructure(array, items, gone))

    def type(self, name, text):
        """Inserts a text at the start of a cell."""
        start = types.Position(0, 0)
        edit = types.TextDocumentContentChangePartial(types.Range(start, start), text)
        identifier = types.VersionedTextDocumentIdentifier(2, f"{URI}#{name}")
        self.change(text_content=[types.NotebookDocumentCellContentChanges(identifier, [edit])])

    def snapshot(self, name, uri=URI):
        return self.documents.snapshot(self.documents.get(f"{uri}#{name}"))

    def parts(self, name):
        """The text before a cell, the cell, and the text after it."""
        snapshot = self.snapshot(name)
        return (
            snapshot.text[: snapshot.num_before],
            snapshot.text[snapshot.num_before : snapshot.end],
            snapshot.text[snapshot.end :],
        )


@pytest.fixture
def editor():
    return NotebookEditor()


def test_markdown_and_other_languages_are_left_out(editor):
    editor.open("a", "%%bash\nls", "z")
    editor.splice(1, 0, "m", opened=[("m", "markdown", "# Title")], kind=MARKUP)
    editor.splice(1, 0, "r", opened=[("r", "ruby", "puts 1")])
    assert editor.parts(2) == ("a\n\n", "z", "")
    assert editor.parts("m") == ("", "# Title", "")
    assert editor.snapshot(1).language == "shellscript"
    editor.change(data=[types.NotebookCell(MARKUP, f"{URI}#0")])
    assert editor.parts(2) == ("", "z", "")


def test_order_and_texts_stay_those_of_the_editor(editor):
    editor.open("a", "b", "c")
    editor.splice(1, 0, "n", opened=[("n", "python", "new")])
    editor.splice(0, 1)  # an editor moves a cell by removing it, which does not close it
    editor.splice(3, 0, [0])
    editor.splice(1, 1, closed=[1])
    editor.type(2, "x")
    assert editor.parts(2) == ("new\n\n", "xc", "\n\na")


def test_the_name_of_the_notebook_excludes_its_cells_and_prompts_of_other_cells_are_prepared(editor):
    uri = "file:///project/vendored/a.ipynb"
    editor.exclusion.settings = PrivacySettings(exclude_patterns=("vendored/",), exclude_languages=("sql",))
    editor.open("x", "%%sql\nselect 1", uri=uri)
    editor.open("x", "%%sql\nselect 1")
    reasons = [editor.exclusion.exclusion_reason(editor.snapshot(*cell)) for cell in [(0, uri), (0,), (1,)]]
    assert reasons == [ExclusionReason.PATTERN, None, ExclusionReason.LANGUAGE]
    editor.splice(1, 0, "n", opened=[("n", "python", "new")])
    assert editor.scheduler.warmed[1:] == [(f"{URI}#n", "x\n\n")]


@pytest.mark.parametrize(
    ("cell", "code", "language"),
    [
        ("%matplotlib inline\nimport os", "\nimport os", "python"),
        ("!pip install \\\n  numpy\nx = 1", "\n\nx = 1", "python"),
        ("  %cd /tmp\r\ndf.head?\r\n?df\r\nx", "\r\n\r\n\r\nx", "python"),
        ("%%time\nx = 1", "\nx = 1", "python"),
        ("names = !ls *.py\nfor name in names:", "\nfor name in names:", "python"),
        ("x = %timeit -o f()\ny", "\ny", "python"),
        ("%%bash\necho !x", "\necho !x", "shellscript"),
        ("%%html\necho !x", "\necho !x", "html"),
        ("%%sql\necho !x", "\necho !x", "sql"),
        ("%%timeit -n 3\necho !x", "\necho !x", "python"),
        ("%%other\necho !x", "\necho !x", "plaintext"),
        # code
        ("a = (b\n  % c != d\n  != e)\ny = x % z", None, "python"),
        ("print('50 %', '!')  # why?", None, "python"),
    ],
)
def test_blanks_stand_for_magics_and_a_cell_magic_has_its_language(cell, code, language):
    shown = CellCode.of(cell, "python")
    assert (len(shown.text), shown.language) == (len(cell), language)
    assert [line.rstrip() for line in shown.text.split("\n")] == (cell if code is None else code).splitlines()


def test_cells_of_the_same_language_are_joined_by_blank_lines(editor):
    editor.open("%pip install x\n\nimport os\n\n", "%%bash\nls", "\n  \n", "  x = 1", "\nprint(x)\n", "  y = 1")
    assert editor.parts(4) == ("import os\n\n  x = 1\n\n", "\nprint(x)\n", "\n\n  y = 1")
