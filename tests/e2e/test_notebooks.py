"""Cells of a notebook over a real pipe: what the model sees of the others, and edits that stay in the cell."""

import json

import pytest
from language_client import span

NOTEBOOK = "file:///project/a.ipynb"
CAPABILITIES = {"notebookDocument": {"synchronization": {}}, "workspace": {"workspaceEdit": {"documentChanges": True}}}
CODE = 2


def uri(number):
    return f"vscode-notebook-cell:/project/a.ipynb#{number}"


def cell(number):
    return {"kind": CODE, "document": uri(number)}


def item(number, text):
    return {"uri": uri(number), "languageId": "python", "version": 1, "text": text}


@pytest.fixture
def notebook(session):
    """A session with an open notebook; its cells have numbers."""

    def make(scenario, *texts, fill=""):
        client = session(scenario, env={"DG_TEST_FILL": fill}, capabilities=CAPABILITIES, editorInfo={})
        document = {"uri": NOTEBOOK, "notebookType": "jupyter-notebook", "version": 1}
        cells = [cell(number) for number in range(len(texts))]
        items = [item(number, text) for number, text in enumerate(texts)]
        opened = {"notebookDocument": {**document, "cells": cells}, "cellTextDocuments": items}
        client.notify("notebookDocument/didOpen", opened)
        return client

    return make


def test_the_model_sees_the_cells_around_the_cursor(notebook):
    client = notebook("echo", "%pip install x\nimport os", "é = '😋'; ", "print(os)")
    capabilities = client.messages[0]["result"]["capabilities"]
    assert capabilities["notebookDocumentSync"]["notebookSelector"] == [{"notebook": "jupyter-notebook"}]
    [item] = client.items(client.complete(0, 10, uri=uri(1)))
    seen = json.loads(item["insertText"])
    assert seen["text"] == "import os\n\né = '😋'; \n\nprint(os)"
    assert seen["offset"] == len("import os\n\né = '😋'; ")
    assert item["range"]["start"] == {"line": 0, "character": 10}
    assert client.items(client.complete(0, 3, uri=uri(0), kind=client.INVOKED)) == []
    assert client.wait_status(lambda status: status["message"])["message"] == "The cursor is in a magic of a notebook."


@pytest.mark.parametrize(
    ("name", "line", "where", "text"),
    [("dg-lsp.rewrite", 1, span(1, 8, 13), "2 * a"), ("dg-lsp.fillGaps", 2, span(2, 0, 3), "total = 2 * a")],
)
def test_edits_stay_in_their_cell(notebook, name, line, where, text):
    client = notebook("fill", "a = 1\n...", "%time f()\ntotal = a + 1\n...", "print(total)", fill="total = 2 * a")
    answer = client.command(name, uri(1), range=span(line, 0, 13))
    [changed] = client.reply("workspace/applyEdit", {"applied": True})["edit"]["documentChanges"]
    assert changed == {"textDocument": {"uri": uri(1), "version": 1}, "edits": [{"range": where, "newText": text}]}
    assert client.result(answer)["applied"]
