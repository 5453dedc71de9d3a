"""Notebooks that a client synchronises: their cells in order, their magics, and the code of the cells around one.

`soak/messages.py` compares the texts of cells that are opened, changed and closed in any order.
"""

import pytest
from lsprotocol import types

from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import ExclusionReason
from dg_lsp.engine.resident_models import ResidentModels
from dg_lsp.server import app
from dg_lsp.server.documents import CellCode, joined
from dg_lsp.server.session import FIRST_CHARS
from dg_lsp.settings import PrivacySettings, Settings

from .conftest import FakeScheduler

CODE, MARKUP = types.NotebookCellKind.Code, types.NotebookCellKind.Markup
URI = "file:///project/a.ipynb"


class Client:
    """A session, and what an editor sends of a notebook."""

    def __init__(self):
        self.server = app.create_server(None, Settings())
        scheduler = FakeScheduler()
        self.server._models = ResidentModels(scheduler, scheduler)
        self.logged = []
        self.server.log = lambda _, message: self.logged.append(message)
        self.documents = self.server.documents

    def open(self, *texts, uri=URI, language="python"):
        """Opens a notebook; its cells have numbers as URIs."""
        cells = [types.NotebookCell(CODE, f"{uri}#{number}") for number in range(len(texts))]
        items = [types.TextDocumentItem(f"{uri}#{number}", language, 1, text) for number, text in enumerate(texts)]
        notebook = types.NotebookDocument(uri, "jupyter-notebook", 1, cells)
        app.did_open_notebook(self.server, types.DidOpenNotebookDocumentParams(notebook, items))
        return self

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

    def type(self, name, text, at=0):
        place = types.Position(0, at)
        edit = types.TextDocumentContentChangePartial(types.Range(place, place), text)
        identifier = types.VersionedTextDocumentIdentifier(2, f"{URI}#{name}")
        self.change(text_content=[types.NotebookDocumentCellContentChanges(identifier, [edit])])

    def close(self, uri=URI):
        app.did_close_notebook(
            self.server, types.DidCloseNotebookDocumentParams(types.NotebookDocumentIdentifier(uri), [])
        )

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
def client():
    return Client()


def test_markdown_and_other_languages_are_left_out(client):
    client.open("a", "%%bash\nls", "z")
    client.splice(1, 0, "m", opened=[("m", "markdown", "# Title")], kind=MARKUP)
    client.splice(1, 0, "r", opened=[("r", "ruby", "puts 1")])
    assert client.parts(2) == ("a\n\n", "z", "")
    assert client.parts("m") == ("", "# Title", "")
    assert client.snapshot(1).language == "shellscript"
    client.change(data=[types.NotebookCell(MARKUP, f"{URI}#0")])
    assert client.parts(2) == ("", "z", "")


def test_order_and_texts_stay_those_of_the_editor(client):
    client.open("a", "b", "c")
    client.splice(1, 0, "n", opened=[("n", "python", "new")])
    client.splice(0, 1)  # an editor moves a cell by removing it, which does not close it
    client.splice(3, 0, [0])
    client.splice(1, 1, closed=[1])
    client.type(2, "x")
    assert client.parts(2) == ("new\n\n", "xc", "\n\na")


def test_a_cell_that_a_client_names_twice_counts_once_and_unknown_notebooks_and_cells_are_logged(client):
    client.open("a", "b")
    client.splice(1, 50, [1, 0, 1])  # more cells than there are, and cells that are there already
    assert client.parts(1) == ("a\n\n", "b", "")
    client.splice(0, 0, [0], uri="file:///unknown.ipynb")
    client.type("gone", "x")
    assert ["not open" in message for message in client.logged] == [True, True]


def test_nothing_of_closed_notebooks_is_kept(client):
    client.open("x = 1", "y = 2")
    client.close()
    assert client.documents.get(f"{URI}#0") is None
    assert client.documents.notebooks == {}


def test_the_name_of_the_notebook_excludes_its_cells(client):
    uri = "file:///project/vendored/a.ipynb"
    client.server.exclusion.settings = PrivacySettings(exclude_patterns=("vendored/",), exclude_languages=("sql",))
    client.open("x", "%%sql\nselect 1", uri=uri)
    client.open("x", "%%sql\nselect 1")
    reasons = [client.server.exclusion.exclusion_reason(client.snapshot(*cell)) for cell in [(0, uri), (0,), (1,)]]
    assert reasons == [ExclusionReason.PATTERN, None, ExclusionReason.LANGUAGE]
    assert len(client.server._models.completion.warmed) == 1


def test_the_first_completion_is_prepared_where_cells_are_opened(client):
    client.open("a = 1\n" * 1000, "b")
    client.splice(1, 0, "n", opened=[("n", "python", "new")])
    [(_, first), (name, second)] = client.server._models.completion.warmed
    assert len(first) in (0, FIRST_CHARS)
    assert (name, second) == (f"{URI}#n", "a = 1\n" * 1000 + "\n")


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%matplotlib inline\nimport os", "\nimport os"),
        ("!pip install \\\n  numpy\nx = 1", "\n\nx = 1"),
        ("  %cd /tmp\r\ndf.head?\r\n?df\r\nx", "\r\n\r\n\r\nx"),
        ("%%time\nx = 1", "\nx = 1"),
        ("names = !ls *.py\nfor name in names:", "\nfor name in names:"),
        ("x = %timeit -o f()\ny", "\ny"),
        # code
        ("a = (b\n  % c != d\n  != e)\ny = x % z", None),
        ("print('50 %', '!')  # why?", None),
    ],
)
def test_blanks_stand_for_magics(cell, code):
    shown = CellCode.of(cell, "python").text
    assert len(shown) == len(cell)
    assert [line.rstrip() for line in shown.split("\n")] == (cell if code is None else code).splitlines()


@pytest.mark.parametrize(
    ("magic", "language"),
    [("bash", "shellscript"), ("html", "html"), ("sql", "sql"), ("timeit -n 3", "python"), ("other", "plaintext")],
)
def test_a_cell_magic_has_the_language_of_its_cell(magic, language):
    code = CellCode.of(f"%%{magic}\necho !x", "python")
    assert code.language == language
    assert code.text.strip() == "echo !x"


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
    whole = joined(own, cells, cells[-1:])
    assert whole.text == "import os\n\n  x = 1\n\n\nprint(x)\n\n\n  x = 1"
    assert whole.alone() == own
    assert whole.text[whole.num_before : whole.end] == own.text
    assert joined(own, [], []) == own
