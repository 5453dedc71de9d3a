"""Rewrites: code actions, commands, edits of one version, progress and reasons."""

import pytest
from language_client import span

SOURCE = "def f(a):\n    total = a + 1\n    return total\n"
LINE = span(1, 4, 17)
DOCUMENT_CHANGES = {"workspace": {"workspaceEdit": {"documentChanges": True}}}
ANNOTATED = {"workspace": {"workspaceEdit": {"documentChanges": True, "changeAnnotationSupport": {}}}}
PROGRESS = {**DOCUMENT_CHANGES, "window": {"workDoneProgress": True}}


@pytest.fixture
def editor(session):
    def make(scenario="fill", fill="total = 2 * a", text=SOURCE, **options):
        return session(scenario, text, env={"DG_TEST_FILL": fill}, **options)

    return make


def command(client, name="dg-lsp.rewrite", **argument):
    return client.command(name, **argument)


def applied(client):
    """The edit of the server, which the client makes."""
    return client.reply("workspace/applyEdit", {"applied": True})["edit"]


def show_progress(client):
    """The client shows the progress of a command; returns its token."""
    return client.reply("window/workDoneProgress/create", None)["token"]


def test_a_rewrite_is_a_minimal_edit_of_one_version_and_does_not_wait_for_the_progress_bar(editor):
    client = editor(capabilities=PROGRESS)
    msg_id = command(client, range=LINE)
    [change] = applied(client)["documentChanges"]
    assert change["textDocument"] == {"uri": client.URI, "version": 1}
    assert change["edits"] == [{"range": span(1, 12, 17), "newText": "2 * a"}]
    assert client.result(msg_id) == {"applied": True, "reason": None}
    show_progress(client)  # too late
    assert client.stats()
    assert client.received("$/progress") == []


def test_a_client_with_change_annotations_shows_a_preview_with_a_short_title(editor):
    client = editor(capabilities=ANNOTATED)
    msg_id = command(client, range=LINE, instruction="double\nit " * 999)
    edit = applied(client)
    assert client.result(msg_id)["applied"]
    label = f"dg-lsp: {('double it ' * 6)[:59]}…"
    assert edit["changeAnnotations"]["dg-lsp"] == {"label": label, "needsConfirmation": True}
    assert edit["documentChanges"][0]["edits"][0]["annotationId"] == "dg-lsp"


def test_the_reason_is_shown_when_nothing_is_changed(editor):
    client = editor(fill="total = a + 1")
    for argument, reason in (
        ({"name": "dg-lsp.fillGaps", "range": LINE}, "no gap in the selection"),
        ({"range": LINE, "strength": 0.5}, "equals the text"),
        ({"range": span(0, 0, 0)}, "select some code"),
        ({"range": span(1, 0, 4)}, "select some code"),
        ({"uri": "file:///project/elsewhere.py", "range": LINE}, "not open"),
        ({}, "uri and range"),
        ({"range": {"start": {"line": "x"}}}, "uri and range"),
        ({"range": LINE, "strength": 7}, "strength"),
        ({"range": LINE, "strength": 0}, "strength"),
    ):
        answer = client.result(command(client, **argument))
        assert answer["applied"] is False
        assert reason in answer["reason"]
        assert reason in str(client.shown())
    assert not client.received("workspace/applyEdit")


@pytest.mark.parametrize(
    ("name", "is_reopened"), [("dg-lsp.rewrite", False), ("dg-lsp.rewrite", True), ("dg-lsp.completeBlock", True)]
)
def test_a_document_that_is_changed_or_opened_again_meanwhile_is_not_edited(editor, steps, name, is_reopened):
    client = editor("slow", text="s+1\n")
    msg_id = command(client, name, range=span(0, 1, 3), position={"line": 0, "character": 1})
    client.wait_until(steps)
    if is_reopened:
        client.close_document()
        client.open("s = 1\n")
    else:
        client.change(2, {"text": "s = 1\n"})
    assert "changed meanwhile" in client.result(msg_id)["reason"]
    assert not client.received("workspace/applyEdit")
    assert steps().count("s") < 64  # the model is free again


@pytest.mark.parametrize("name", ["dg-lsp.rewrite", "dg-lsp.completeBlock"])
def test_progress_can_be_cancelled(editor, steps, name):
    client = editor("slow", text="x = s\n", capabilities=PROGRESS)
    msg_id = command(client, name, range=span(0, 4, 5), strength=1.0, position={"line": 0, "character": 5})
    token = show_progress(client)
    client.wait_until(steps)
    client.notify("window/workDoneProgress/cancel", {"token": token})
    assert client.result(msg_id)["applied"] is False
    kinds = [report["value"]["kind"] for report in client.received("$/progress") if report["token"] == token]
    assert (kinds[0], kinds[-1]) == ("begin", "end")


@pytest.mark.parametrize(
    ("text", "position", "opening"),
    [("def f(a):\n    \n", {"line": 1, "character": 4}, ""), ("def f(a):", {"line": 0, "character": 9}, "\n    ")],
    ids=["in a line", "behind a header"],
)
def test_a_block_is_inserted_at_the_cursor(editor, text, position, opening):
    client = editor(fill="total = a\nreturn total", text=text)
    command(client, "dg-lsp.completeBlock", position=position)
    [edits] = applied(client)["changes"].values()
    assert edits[0]["range"]["start"] == edits[0]["range"]["end"] == position
    assert edits[0]["newText"].startswith(f"{opening}total = a")


@pytest.mark.parametrize(
    ("name", "fill", "text", "reason"),
    [
        ("dg-lsp.completeBlock", "= =", "a\n", "the result would add a syntax error"),
        ("dg-lsp.fillGaps", "...", "a = ...\n", "line 1: the fill equals the text that it would replace"),
    ],
)
def test_a_refused_fill_has_its_reason(editor, name, fill, text, reason):
    client = editor(fill=fill, text=text)
    answer = client.result(command(client, name, range=span(0, 0, 0, 1), position={"line": 0, "character": 1}))
    assert answer["reason"] == f"nothing was changed: {reason}"


def test_actions_for_a_selection_a_cursor_and_a_diagnostic(editor):
    client = editor()
    titles = [action["title"] for action in client.actions(LINE)]
    assert titles == ["Replace selection with a fill", "Regenerate 60% of the selection"]
    cursor = span(1, 4, 4)
    diagnostic = {"range": LINE, "message": "undefined name\nmore", "severity": 1}
    fix, block = client.actions(cursor, diagnostic)
    assert block["title"] == "Complete this block"
    assert (fix["title"], fix["kind"]) == ("Fix with dg-lsp: undefined name", "quickfix")
    [argument] = fix["command"]["arguments"]
    assert argument == {"uri": client.URI, "range": LINE, "instruction": "fix: undefined name", "mustFixErrors": True}
    assert [action["title"] for action in client.actions(cursor, diagnostic, only=["quickfix"])] == [fix["title"]]
    assert [action["title"] for action in client.actions(cursor, diagnostic, triggerKind=2)] == [fix["title"]]
    assert client.actions(LINE, only=["source"]) == []
    assert len(client.actions(LINE, only=["refactor"])) == 2


@pytest.mark.parametrize("follows", [True, False])
def test_a_rewrite_by_an_instruction_needs_an_input_box_and_a_model_that_follows_it(session, follows):
    env = {"DG_TEST_FOLLOWS": "1"} if follows else {}
    experimental = {"dgLsp": {"commands": ["dg-lsp.askInstruction"]}}
    client = session("fill", SOURCE, env=env, capabilities={"experimental": experimental})
    client.wait_log("ready after")
    asking = [action for action in client.actions(LINE) if action["title"] == "Rewrite selection…"]
    assert [action["command"]["command"] for action in asking] == ["dg-lsp.askInstruction"] * follows


def test_the_gaps_of_a_selection_are_filled_by_one_edit_while_their_canvases_are_shown(editor):
    text = "a = ...\nb = 2\nc = f(, b)\n"
    client = editor(fill="7", text=text, capabilities=DOCUMENT_CHANGES)
    everything = span(0, 0, 0, 3)
    client.notify("dg-lsp/watch", {"on": True})
    [action] = [action for action in client.actions(everything) if action["title"] == "Fill the gaps in the selection"]
    msg_id = client.request("workspace/executeCommand", action["command"])
    [change] = applied(client)["documentChanges"]
    assert [part["newText"] for part in change["edits"]] == ["7", "7"]
    assert client.result(msg_id)["applied"]
    assert {frame["block"] for frame in client.received("dg-lsp/denoising")} == {0, 1}


@pytest.mark.parametrize(
    ("name", "argument", "fate"),
    [
        ("dg-lsp.rewrite", {"instruction": "double it"}, "it receives this one as a comment"),
        ("dg-lsp.fillGaps", {}, "it sees the TODO lines as comments"),
    ],
)
def test_an_instruction_that_the_model_does_not_follow_is_reported_first(editor, name, argument, fate):
    client = editor(fill="7", text="# TODO: seven\na = 1\n", capabilities=DOCUMENT_CHANGES)
    client.wait_log("ready after")
    msg_id = command(client, name, range=span(0, 0, 1, 5), **argument)
    applied(client)
    [message] = [shown["message"] for shown in client.received("window/showMessage")]
    assert message.startswith("dg-lsp: scripted follows no instructions")
    assert fate in message
    assert client.result(msg_id)["applied"]


@pytest.fixture
def pair(session):
    """`pair(name)` -> an editor whose rewrites have this model; completions write `small`, in Python only."""

    def begin(name):
        env = {"DG_TEST_FILL": "small", "DG_TEST_LANGUAGES": "python"}
        return session("fill", SOURCE, env=env, rewrite={"model": name}, editorInfo={"name": "test"})

    return begin


def rewritten(client, **where):
    """The new text of a rewrite, which the client applies."""
    msg_id = command(client, range=LINE, **where)
    edit = applied(client)
    assert client.result(msg_id)["applied"]
    return str(edit)


def test_rewrites_have_their_own_model_and_its_languages(pair):
    client = pair("reviser")
    client.wait_status(lambda status: status["dgLsp"].get("rewriteModel") == "reviser")
    client.wait_log("reviser for rewrites ready")
    assert client.texts(1, 4) == ["small"]
    rust = {"uri": "file:///project/main.rs"}
    client.open(SOURCE, rust["uri"], "rust")
    assert "revised" in rewritten(client, **rust)
    refused = command(client, "dg-lsp.completeBlock", position=LINE["start"], **rust)
    assert "Python only" in client.result(refused)["reason"]
    assert [action["title"] for action in client.actions(LINE, **rust)] == [
        "Replace selection with a fill",
        "Regenerate 60% of the selection",
    ]


def test_completions_go_on_without_the_model_of_rewrites_until_the_settings_name_another(pair):
    client = pair("nowhere")
    client.wait_log("no model for rewrites: no model named 'nowhere'")
    assert "no model named" in client.result(command(client, range=LINE))["reason"]
    assert client.texts(1, 4) == ["small"]
    client.configure(rewrite={"model": "reviser"})
    client.wait_log("reviser for rewrites ready")
    assert "revised" in rewritten(client)


@pytest.fixture
def failing(bwrap, editor, tmp_path):
    """`failing(...)`: an editor whose document is a file in its workspace; a second document is not saved."""

    def begin(fill, **options):
        folder = tmp_path / "project"
        folder.mkdir()
        for name in ("main.py", "other.py"):
            (folder / name).write_text(SOURCE)
        client = editor("three", fill, folder=folder.as_uri(), **options)
        client.open("unsaved\n", (folder / "other.py").as_uri())
        client.open(SOURCE, (folder / "main.py").as_uri())
        return client, folder

    return begin


def fix(client, folder, test, **argument):
    return command(client, "dg-lsp.fixTest", uri=(folder / "main.py").as_uri(), range=LINE, test=test, **argument)


def test_the_first_rewrite_with_which_a_test_passes_is_one_edit(failing):
    client, folder = failing("", capabilities=DOCUMENT_CHANGES)
    test = "grep -q unsaved other.py && grep second main.py || { echo 'E  no second'; echo x > stray; false; }"
    msg_id = fix(client, folder, test)
    [change] = applied(client)["documentChanges"]
    assert [edit["newText"] for edit in change["edits"]] == ["second"]
    assert client.result(msg_id) == {"applied": True, "reason": None}
    [report] = [shown["message"] for shown in client.received("window/showMessage")]
    assert report.startswith("dg-lsp: the test fails: E no second; the candidate with confidence ")
    assert " passes after " in report.rpartition("; ")[2]
    assert not any("no second" in logged["message"] for logged in client.received("window/logMessage"))
    assert sorted(path.name for path in folder.iterdir()) == ["main.py", "other.py"]


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("false", "nothing was changed: the result does not pass the test"),
        ("true", "the test passes already"),
        ("no-such-program", "the test cannot be run"),
        ("./main.py", "the test cannot be run"),
        (" ", "needs the command of a test"),
        (None, "needs the command of a test"),
    ],
)
def test_a_test_that_does_not_help_has_a_reason(failing, test, reason):
    client, folder = failing("")
    assert reason in client.result(fix(client, folder, test))["reason"]
    assert not client.received("workspace/applyEdit")


def test_a_library_that_is_open_but_not_copied_does_not_keep_a_test_from_running(failing):
    client, folder = failing("")
    library = folder / "node_modules" / "a.py"
    library.parent.mkdir()
    library.write_text("x = 1\n")
    client.open("x = 1\n", library.as_uri())
    assert "does not pass the test" in client.result(fix(client, folder, "false"))["reason"]
    client.open("x = 2\n", library.as_uri())
    assert "cannot see unsaved changes" in client.result(fix(client, folder, "false"))["reason"]


def test_a_newer_rewrite_of_a_document_cancels_a_running_test(failing):
    client, folder = failing("")
    older = fix(client, folder, "sleep 1000")
    newer = fix(client, folder, "true")
    assert client.result(older) == {"applied": False, "reason": "cancelled"}
    assert "the test passes already" in client.result(newer)["reason"]


@pytest.mark.parametrize(("is_trusted", "num_actions"), [(True, 1), (False, 0), (None, 1)])
def test_no_test_runs_in_a_folder_that_the_editor_does_not_trust(failing, is_trusted, num_actions):
    asking = {"experimental": {"dgLsp": {"commands": ["dg-lsp.askTest"]}}}
    options = {} if is_trusted is None else {"isTrusted": is_trusted}
    client, folder = failing("", capabilities=asking, **options)
    uri = (folder / "main.py").as_uri()
    titles = [action["title"] for action in client.actions(LINE, uri=uri)]
    assert titles.count("Fix the failing test…") == num_actions
    reason = client.result(fix(client, folder, "true"))["reason"]
    assert ("does not trust" in reason) is (is_trusted is False)
