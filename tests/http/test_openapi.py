"""The document says what the server does: all of its paths, and every status that it answers with."""

import ast
from pathlib import Path

from dg_lsp.http import app, refusal
from dg_lsp.http.openapi import document


def test_the_document_is_served(module_client):
    tree = module_client.get("/openapi.json").tree
    assert tree["openapi"].startswith("3.1")
    assert tree == document()


def test_it_has_all_paths_and_no_other():
    paths = document()["paths"]
    assert {path for path, about in paths.items() if "post" in about} == set(app.POSTED)
    assert {path for path, about in paths.items() if "get" in about} == set(app.READ)


def test_every_status_that_is_refused_with_is_in_it():
    """Those that the room's own sources name; 404 is of no path."""
    raised = {404}
    for path in Path(app.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Refusal":
                status = call.args[0]
                raised.add(status.value if isinstance(status, ast.Constant) else getattr(refusal, status.id, 500))
    responses = document()["paths"]["/infill"]["post"]["responses"]
    assert {str(status) for status in raised - {404}} <= set(responses)
    assert all(isinstance(status, int) for status in raised)
