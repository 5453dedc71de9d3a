"""The engine that asks a server, over a model that says what a test wants."""

import inspect
import math
import time

import pytest

from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.context.asking import Said, Task
from dg_lsp.context.document import Snapshot
from dg_lsp.context.snippets import Snippet, Snippets, SnippetSource
from dg_lsp.engine.chat import ChatRequest
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.remote import RemoteEngine
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.errors import ModelUnsupportedError, RequestError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import FillSettings

BEFORE = "def area(width, height):\n    return "
AFTER = "\n\n\nprint(area(2, 3))\n"


class Spoken:
    """Says these, one after the other; then it is over."""

    name = "spoken"
    max_prompt_tokens = 2048

    def __init__(self, *said, is_chat=False):
        self.said = said
        self.follows_instructions = is_chat
        self.asked = []
        self.num_said = 0
        self.is_closed = False

    def ask(self, asking, deadline):
        self.asked.append((asking, deadline))
        for said in self.said:
            self.num_said += 1
            yield said

    def close(self):
        self.is_closed = True


def fill(model, before=BEFORE, after=AFTER, **asked):
    engine = RemoteEngine(model, FillSettings())
    return engine.fill(FillRequest(Snapshot("file:///a/shapes.py", 0, before + after), len(before), **asked))


def test_code_from_elsewhere_has_its_share_and_no_more():
    chunks = (
        Snippet(SnippetSource.OPEN_FILES, "large.py", "x" * 1900),
        Snippet(SnippetSource.OPEN_FILES, "small.py", "x" * 100),
        Snippet(SnippetSource.DIAGNOSTICS, "d", "x" * 100),
    )
    model = Spoken(Said(("width * height",), is_ended=True))
    fill(model, extra=Snippets(chunks, share=0.25))
    shown = model.asked[0][0].prompt.extra.chunks
    assert [one.path for one in shown] == ["large.py", "d"]


def test_what_is_said_is_judged_like_any_fill():
    model = Spoken(Said(("width",)), Said(("width * height",), is_ended=True, model="big", prompt_tokens=20))
    result = fill(model)
    assert (result.text, result.model, result.prompt_tokens) == ("width * height", "big", 20)
    asking, _ = model.asked[0]
    assert (asking.task, asking.prompt.prefix, asking.prompt.suffix) == (Task.FILL, BEFORE, AFTER)
    assert (asking.prompt.path, asking.prompt.language) == ("a/shapes.py", "python")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.EMPTY),
        ("width *", Reason.SYNTAX_ERROR),
        ("\n\nprint(area(2, 3))", Reason.EMPTY),
        ("\x00", Reason.NOT_TEXT),
    ],
)
def test_what_is_not_worth_showing_is_rejected(text, reason):
    result = fill(Spoken(Said((text,), is_ended=True)))
    assert (result.candidates, result.rejections[0].reason) == ((), reason)


def test_whoever_has_a_line_where_one_is_allowed_hangs_up():
    model = Spoken(Said(("width * height\n",)), Said(("width * height\nprint()",)), Said((), is_ended=True))
    assert fill(model).text == "width * height"
    assert model.num_said == 1


def test_a_block_that_was_broken_off_ends_with_its_last_whole_line():
    before = "def area(width, height):\n"
    assert fill(Spoken(Said(("    a = width\n    return a *",))), before, AFTER).text.rstrip() == "    a = width"


def test_whole_lines_are_enough_once_patience_is_over():
    model = Spoken(Said(("    a = width\n",)), Said(("    a = width\n    b = 1\n",)))
    result = fill(model, "def area(width, height):\n", AFTER, early_stop_ms=1e-3)
    assert (result.text.rstrip(), model.num_said) == ("    a = width", 1)


def test_nothing_by_the_deadline_is_unfinished():
    result = fill(Spoken(Said(())))
    assert (result.candidates, result.rejections[0].reason) == ((), Reason.UNFINISHED)


def test_several_answers_are_several_candidates():
    model = Spoken(Said(("width * height", "width * height", "height"), is_ended=True))
    result = fill(model, num_candidates=3)
    assert [one.text for one in result.candidates] == ["width * height", "height"]
    assert model.asked[0][0].num_answers == 3


def test_a_model_that_goes_in_circles_is_left():
    model = Spoken(Said(("    x = 1\n" * 5,)), Said(("    x = 1\n" * 50,)))
    fill(model, "def area():\n", "")
    assert model.num_said == 1


def test_without_a_deadline_somebody_still_looks_at_the_clock():
    model = Spoken(Said(("x",), is_ended=True))
    drain(RemoteEngine(model, FillSettings()).run(FillRequest(Snapshot("a", 0, "y = "), 4), deadline=math.inf))
    assert time.monotonic() < model.asked[0][1] < math.inf


TEXT = "a = 1\nb = 2\nc = 3\n"


def rewritten(model, instruction="", strength=1.0, start=6, end=11):
    request = RewriteRequest(Snapshot("file:///x.py", 0, TEXT), start, end, instruction, strength)
    return drain(RemoteEngine(model, FillSettings()).rewrite(request))


def test_an_instruction_is_followed_by_who_follows_instructions():
    model = Spoken(Said(("b = 4\n",), is_ended=True), is_chat=True)
    result = rewritten(model, "double it")
    assert (result.text, result.start, result.end, result.follows_instructions) == ("b = 4\n", 6, 12, True)
    asking, _ = model.asked[0]
    assert (asking.task, asking.prompt.selection, asking.prompt.instruction) == (Task.REWRITE, "b = 2\n", "double it")
    assert (asking.prompt.prefix, asking.prompt.suffix) == ("a = 1\n", "c = 3\n")


def test_others_see_it_as_a_comment_and_fill_the_gap():
    model = Spoken(Said(("b = 4\nc = 3\nd",)))
    result = rewritten(model, "double it")
    assert (result.text, result.follows_instructions) == ("b = 4", False)
    asking, _ = model.asked[0]
    assert (asking.task, asking.prompt.prefix) == (Task.FILL, "a = 1\n# double it\n")


def test_half_a_rewrite_is_none():
    assert rewritten(Spoken(Said(("b =",)), is_chat=True), "double it").rejection.reason is Reason.UNFINISHED


@pytest.mark.parametrize("wrong", [{"strength": 0.5}, {"start": 5, "end": 6}, {"start": 0, "end": 99}])
def test_what_cannot_be_rewritten_is_refused(wrong):
    with pytest.raises(RequestError):
        rewritten(Spoken(), **wrong)


def test_a_chat_is_passed_on():
    model = Spoken(Said(("hello",), is_ended=True), is_chat=True)
    request = ChatRequest((Turn(Role.USER, "hi"),), "c")
    result = drain(RemoteEngine(model, FillSettings()).chat(request, deadline=math.inf))
    assert result.text == "hello"
    assert model.asked[0][0].turns == (("user", "hi"),)
    with pytest.raises(ModelUnsupportedError, match=r"remote\.api"):
        drain(RemoteEngine(Spoken(), FillSettings()).chat(request, deadline=math.inf))


def test_frames_are_texts_without_cells():
    engine = RemoteEngine(Spoken(Said(("width",)), Said(("width * height",), is_ended=True)), FillSettings())
    steps = engine.run(FillRequest(Snapshot("a.py", 0, BEFORE + AFTER), len(BEFORE)))
    assert engine.framer().frame(next(steps)).settled_text == "width"
    assert engine.framer().frame(next(steps)).cells == ()


def test_other_settings_keep_the_connections():
    model = Spoken()
    engine = RemoteEngine(model, FillSettings()).configured(FillSettings(max_tokens=7))
    assert engine.settings.max_tokens == 7
    engine.close()
    assert model.is_closed


def test_nothing_of_an_engine_is_left_to_one_without_a_model():
    def public(kind):
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    fit_as_they_are = {"fill", "settings", "spec"}
    assert public(Engine) - fit_as_they_are <= {name for name in vars(RemoteEngine) if not name.startswith("_")}
