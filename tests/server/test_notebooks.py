"""Notebooks that a client synchronises: their cells in order, as documents with the other cells around them."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

from dg_lsp.context.exclusion import ExclusionReason
from dg_lsp.engine.resident_models import ResidentModels
from dg_lsp.server import app
from dg_lsp.server.session import FIRST_CHARS
from dg_lsp.settings import ContextSettings, PrivacySettings, Settings

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
        one = self.snapshot(name)
        return one.text[: one.num_before], one.text[one.num_before : one.end], one.text[one.end :]


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


OPERATION = st.tuples(st.sampled_from(["insert", "delete", "move", "type"]), st.integers(0, 5), st.integers(0, 5))


@given(st.lists(OPERATION, max_size=12))
def test_order_and_texts_stay_those_of_the_editor(operations):
    """Compared with a list of names and texts."""
    client, expected = Client().open("cell0", "cell1"), [("0", "cell0"), ("1", "cell1")]
    for number, (what, first, second) in enumerate(operations):
        at = min(first, len(expected))
        if what == "insert":
            name = f"n{number}"
            client.splice(at, 0, [name], opened=[(name, "python", f"new{number}")])
            expected.insert(at, (name, f"new{number}"))
        elif at < len(expected):
            name, text = expected[at]
            if what == "delete":
                client.splice(at, 1, closed=[name])
                del expected[at]
            elif what == "move":
                client.splice(at, 1)
                del expected[at]
                to = min(second, len(expected))
                client.splice(to, 0, [name])
                expected.insert(to, (name, text))
            else:
                client.type(name, "x")
                expected[at] = name, f"x{text}"
    for at, (name, text) in enumerate(expected):
        texts = [one for _, one in expected]
        assert client.parts(name) == (
            "".join(f"{one}\n\n" for one in texts[:at]),
            text,
            "".join(f"\n\n{one}" for one in texts[at + 1 :]),
        )


def test_what_a_client_sends_wrongly_loses_nothing(client):
    client.open("a", "b")
    client.splice(0, 0, [0], uri="file:///unknown.ipynb")
    assert client.logged == ["change of a notebook that is not open: file:///unknown.ipynb"]
    client.splice(1, 50, [1, 0, 1])  # more cells than there are, and cells that are there already
    assert client.parts(1) == ("a\n\n", "b", "")
    client.splice(70, 0, "n", opened=[("n", "python", "n")])
    client.splice(3, 0, ["never opened"])
    assert client.parts("n") == ("a\n\nb\n\n", "n", "")
    client.type("gone", "x")
    assert "not open" in client.logged.pop()
    client.close("file:///unknown.ipynb")
    client.open("c")
    assert client.parts(0) == ("", "c", "")
    assert client.documents.get(f"{URI}#1") is None
    client.close()
    assert client.documents.files() == []
    client.close()


def test_the_name_of_the_notebook_excludes_its_cells(client):
    uri = "file:///project/vendored/a.ipynb"
    client.server.exclusion.settings = PrivacySettings(exclude_patterns=("vendored/",), exclude_languages=("sql",))
    client.open("x", "%%sql\nselect 1", uri=uri)
    client.open("x", "%%sql\nselect 1")
    reasons = [client.server.exclusion.exclusion_reason(client.snapshot(*one)) for one in [(0, uri), (0,), (1,)]]
    assert reasons == [ExclusionReason.PATTERN, None, ExclusionReason.LANGUAGE]
    assert len(client.server._models.completion.warmed) == 1


def test_a_notebook_is_one_file_of_the_context(client):
    client.open("price = 1", "total = price", uri="file:///project/b.ipynb")
    client.open("total = price", "total")
    snippets = client.server.context_provider.snippets(client.snapshot(1), 0, ContextSettings())
    assert [(one.path, one.text) for one in snippets.chunks] == [("project/b.ipynb", "price = 1\n\ntotal = price")]


def test_nothing_of_closed_notebooks_is_kept(client):
    tracemalloc.start()
    for number in range(40):
        uris = [f"file:///project/{number}{name}.ipynb" for name in "ab"]
        client.open(f"price_{number} = total\n" * 5000, uri=uris[0])
        client.open("total = price", uri=uris[1])
        assert client.server.context_provider.snippets(client.snapshot(0, uris[1]), 0, ContextSettings()).chunks
        for uri in uris:
            client.close(uri)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3_000_000


def test_the_first_completion_is_prepared_where_cells_are_opened(client):
    client.open("a = 1\n" * 1000, "b")
    client.splice(1, 0, "n", opened=[("n", "python", "new")])
    [(_, first), (name, second)] = client.server._models.completion.warmed
    assert len(first) in (0, FIRST_CHARS)
    assert (name, second) == (f"{URI}#n", "a = 1\n" * 1000 + "\n")
