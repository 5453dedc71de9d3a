"""A model that knows some languages only, here Python, and documents in others."""

import pytest
from language_client import span

EDITOR = {"editorInfo": {"name": "test", "version": "1"}}
REASON = "scripted knows Python only; choose another model: dg-lsp setup"
SCRIPT, PYTHON = "file:///project/app.ts", "file:///project/main.py"
INPUT = {"experimental": {"dgLsp": {"commands": ["dg-lsp.askInstruction"]}}}
CODE = "const total = 1;\n"


@pytest.fixture
def python_only(session):
    """A session whose model knows Python; a Python and a TypeScript document are open."""

    def begin(**options):
        env = {"DG_TEST_FILL": "total", "DG_TEST_LANGUAGES": "python", **options.pop("env", {})}
        client = session("fill", "\n", env=env, **EDITOR, **options)
        client.open(CODE, uri=SCRIPT, language="typescript")
        return client

    return begin


def test_a_document_in_another_language_gets_nothing_and_the_status_has_the_reason(python_only, gate):
    client = python_only(env=gate.env)
    early = client.complete(0, 0, uri=SCRIPT)
    client.focus(SCRIPT)
    gate.open()
    assert client.items(early) == []
    status = client.wait_status(lambda status: status["dgLsp"]["state"] == "unsupported")
    assert (status["message"], status["kind"], status["busy"]) == (REASON, "Inactive", False)
    stats = client.stats()
    assert (stats["state"], stats["message"]) == ("unsupported", REASON)
    for kind in (client.AUTOMATIC, client.INVOKED):
        assert client.texts(0, 0, uri=SCRIPT, kind=kind) == []
    [logged] = client.logged(REASON)
    assert "typescript" in logged
    assert client.shown() == []
    client.focus(PYTHON)
    assert client.wait_status(lambda status: status["dgLsp"]["state"] == "ready")["message"] == ""
    assert client.texts(0, 0, uri=PYTHON) == ["total"]


def test_a_rewrite_in_another_language_is_answered_with_the_reason(python_only):
    client = python_only(capabilities=INPUT)
    client.wait_log("ready")
    where = span(0, 0, 0, 1)
    for command in ("dg-lsp.rewrite", "dg-lsp.fillGaps", "dg-lsp.completeBlock"):
        done = client.command(command, SCRIPT, range=where, position=where["start"])
        assert client.result(done) == {"applied": False, "reason": REASON}
    shown = client.received("window/showMessage")
    assert [(message["type"], message["message"]) for message in shown] == [(2, f"dg-lsp: {REASON}")] * 3  # warnings
    assert client.actions(where, uri=SCRIPT) == []


def test_a_minified_file_of_one_long_line_is_completed(session):
    client = session("fill", env={"DG_TEST_FILL": "total"})
    piece = "var a=f(...b,{c:[1,2]}),d=`${a}`;"
    half = piece * (2_500_000 // len(piece))
    client.open(f"{half}x=();{half}", uri=SCRIPT, language="javascript")
    client.type(2, 0, len(half) + 3, "y,", uri=SCRIPT)
    assert client.texts(0, len(half) + 5, uri=SCRIPT, kind=client.INVOKED) == ["total"]
    titles = [action["title"] for action in client.actions(span(0, 0, 2 * len(half)), uri=SCRIPT)]
    assert "Replace selection with a fill" in titles
    assert "Fill the gaps in the selection" not in titles
