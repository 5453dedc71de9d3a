"""The engine over a model behind a server; the model returns the answers of the test."""

import math
import time

import pytest
from gates import TIMEOUT

from dg_lsp.backends.remote.dialects import DIALECTS, RemoteAnswer, RemoteTask
from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.context.document import Snapshot
from dg_lsp.context.gaps import find_gaps
from dg_lsp.context.window import Snippet, Snippets, SnippetSource
from dg_lsp.engine.engine import drain
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.engine.request import ChatRequest, FillRequest, Priority, RewriteRequest
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import ModelUnsupportedError, RequestError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import CompletionSettings, Settings

BEFORE = "def area(width, height):\n    return "
HEADER = "def area(width, height):\n"
AFTER = "\n\n\nprint(area(2, 3))\n"


class FakeModel:
    """Yields these answers; a string is a finished answer of one text."""

    name = "fake"
    max_prompt_tokens = 2048
    languages = ()

    def __init__(self, *answers, is_chat=False):
        self._answers = [
            RemoteAnswer((answer,), is_finished=True) if isinstance(answer, str) else answer for answer in answers
        ]
        self.dialect = DIALECTS["chat" if is_chat else "completions"]
        self.queries = []
        self.deadline = None
        self.num_yielded = 0
        self.is_closed = False

    def stream(self, query, deadline):
        self.queries.append(query)
        self.deadline = deadline
        for answer in self._answers:
            self.num_yielded += 1
            yield answer

    def close(self):
        self.is_closed = True


def fill(model, before=BEFORE, after=AFTER, **options):
    engine = RemoteEngine(model, CompletionSettings())
    return engine.fill(FillRequest(Snapshot("file:///a/shapes.py", before + after), len(before), **options))


def test_a_query_contains_prefix_suffix_path_and_language():
    model = FakeModel(
        RemoteAnswer(("width",)), RemoteAnswer(("width * height",), is_finished=True, model="big", prompt_tokens=20)
    )
    result = fill(model)
    assert (result.text, result.model, result.prompt_tokens) == ("width * height", "big", 20)
    [query] = model.queries
    assert (query.task, query.prompt.prefix, query.prompt.suffix) == (RemoteTask.FILL, BEFORE, AFTER)
    assert (query.prompt.path, query.prompt.language) == ("a/shapes.py", "python")


def test_the_languages_of_a_server_are_known_from_its_first_answer_on():
    model = FakeModel("width")
    engine = RemoteEngine(model, CompletionSettings())
    assert engine.spec.language_problem("go") == ""
    model.languages = ("python",)
    engine.fill(FillRequest(Snapshot("file:///a/shapes.py", BEFORE + AFTER), len(BEFORE)))
    assert "fake knows Python only" in engine.spec.language_problem("go")
    assert engine.spec.language_problem("python") == ""


OUTPUT = "".join(f"line {number}\n" for number in range(999))


@pytest.mark.parametrize(
    ("chunks", "kept"),
    [
        pytest.param({"large.py": "x" * 1900, "small.py": "x" * 100, "d": "x" * 100}, ["large.py", "d"], id="the best"),
        pytest.param({"test": OUTPUT, "d": "x" * 300}, ["test"], id="the end of a test's output first"),
    ],
)
def test_extra_code_takes_at_most_its_share_of_the_prompt(chunks, kept):
    sources = {"test": SnippetSource.TEST, "d": SnippetSource.EDITS}
    model = FakeModel("width * height")
    snippets = (Snippet(sources.get(path, SnippetSource.OPEN_FILES), path, text) for path, text in chunks.items())
    fill(model, snippets=Snippets(tuple(snippets)))
    sent = model.queries[0].prompt.snippets.chunks
    assert [chunk.path for chunk in sent] == kept
    assert 1000 < sum(len(chunk.text) for chunk in sent) <= 2048
    assert all(chunks[chunk.path].endswith(chunk.text) for chunk in sent)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("\n\nprint(area(2, 3))", Reason.EMPTY), ("width *", Reason.SYNTAX_ERROR), (RemoteAnswer(), Reason.UNFINISHED)],
)
def test_an_answer_that_is_not_worth_showing_is_rejected(answer, reason):
    result = fill(FakeModel(answer))
    assert (result.candidates, result.rejections[0].reason) == ((), reason)


@pytest.mark.parametrize(
    ("before", "text", "shown", "options"),
    [
        pytest.param(BEFORE, "width * height\n", "width * height", {}, id="the allowed lines"),
        pytest.param(HEADER, "    a = width\n", "    a = width", {"early_stop_ms": 1e-3}, id="lines at the early stop"),
        pytest.param(HEADER, "    x = 1\n" * 5, "    x = 1", {}, id="a repetition"),
    ],
)
def test_a_stream_is_closed_after_as_much_as_can_be_shown(before, text, shown, options):
    model = FakeModel(RemoteAnswer((text,)), RemoteAnswer((text + "    b = 1\n",)))
    assert fill(model, before, AFTER, **options).text.rstrip() == shown
    assert model.num_yielded == 1
    unfinished = FakeModel(RemoteAnswer((text + "    b = (",)))
    assert fill(unfinished, before, AFTER, **options).text.rstrip() == shown, "its last line is dropped"


def test_several_answers_are_several_candidates():
    model = FakeModel(RemoteAnswer(("width * height", "width * height", "height"), is_finished=True))
    result = fill(model, num_candidates=3)
    assert [candidate.text for candidate in result.candidates] == ["width * height", "height"]
    assert model.queries[0].num_answers == 3


def test_a_request_that_only_warms_the_cache_sends_nothing():
    model = FakeModel()
    assert fill(model, priority=Priority.WARM_UP).is_unfinished
    assert model.queries == []


TEXT = "a = 1\nb = 2\nc = 3\n"


def rewrite(model, instruction="", text=TEXT, where=(6, 11), **options):
    request = RewriteRequest(Snapshot("file:///x.py", text), *where, instruction, **options)
    return drain(RemoteEngine(model, CompletionSettings()).rewrite(request, deadline=math.inf))


def test_a_chat_model_gets_the_selection_and_the_instruction():
    model = FakeModel("b = 4\n", is_chat=True)
    result = rewrite(model, "double it")
    assert (result.text, result.start, result.end) == ("b = 4\n", 6, 12)
    [query] = model.queries
    prompt = query.prompt
    assert (query.task, prompt.selection, prompt.instruction) == (RemoteTask.REWRITE, "b = 2\n", "double it")
    assert (prompt.prefix, prompt.suffix) == ("a = 1\n", "c = 3\n")


def test_other_models_get_the_instruction_as_a_comment_and_fill_the_gap():
    model = FakeModel(RemoteAnswer(("b = 4\nc = 3\nd",)))
    result = rewrite(model, "double it")
    assert result.text == "b = 4"
    assert (model.queries[0].task, model.queries[0].prompt.prefix) == (RemoteTask.FILL, "a = 1\n# double it\n")


def test_gaps_are_filled_by_one_query_each():
    model, text = FakeModel("7"), "x = ...\ny = ...\n"
    result = rewrite(model, text=text, where=(0, 16), gaps=find_gaps(Snapshot("file:///x.py", text), 0, 16))
    assert (result.start, result.end, result.text) == (4, 15, "7\ny = 7")
    assert [query.prompt.prefix for query in model.queries] == ["x = ", "x = 7\ny = "]


def test_several_rewrites_are_requested_at_once_and_faulty_and_unfinished_ones_left_out():
    model = FakeModel(RemoteAnswer(("def f(:", "b = 3", "b = 4", "b = 3"), is_finished=True), is_chat=True)
    result = rewrite(model, "double it", num_candidates=4)
    assert model.queries[0].num_answers == 4
    assert [option.text.strip() for option in (result, *result.alternatives)] == ["b = 3", "b = 4"]
    unfinished = FakeModel(RemoteAnswer(("b =",)), is_chat=True)
    assert rewrite(unfinished, "double it").reason is Reason.UNFINISHED
    with pytest.raises(RequestError, match="no canvas to renoise"):
        rewrite(FakeModel(), strength=0.5)


HI = ChatRequest((Turn(Role.USER, "hi"),), "c")


def chat(model):
    return drain(RemoteEngine(model, CompletionSettings()).chat(HI, deadline=math.inf))


def test_a_chat_sends_its_messages_and_needs_the_chat_api():
    model = FakeModel("hello", is_chat=True)
    assert chat(model).text == "hello"
    assert time.monotonic() < model.deadline < math.inf
    assert model.queries[0].messages == (("user", "hi"),)
    assert not chat(FakeModel("", is_chat=True)).is_unfinished
    with pytest.raises(ModelUnsupportedError, match=r"remote\.api"):
        chat(FakeModel())


def test_the_text_of_a_chat_is_passed_on_as_it_grows():
    model = FakeModel(RemoteAnswer(("hel",)), RemoteAnswer(("hello",)), "hello you", is_chat=True)
    scheduler = Scheduler(lambda settings: RemoteEngine(model, settings.completion), Settings())
    frames = []
    result = scheduler.submit(HI, frames.append).result(TIMEOUT)
    scheduler.close()
    assert (result.text, [frame.settled_text for frame in frames]) == ("hello you", ["hel", "hello", "hello you"])


def test_progress_has_the_text_and_an_engine_with_other_settings_shares_the_connections():
    model = FakeModel(RemoteAnswer(("width",)), "width * height")
    engine = RemoteEngine(model, CompletionSettings()).configured(CompletionSettings(max_tokens=7))
    steps = engine.complete(FillRequest(Snapshot("a.py", BEFORE + AFTER), len(BEFORE)), deadline=math.inf)
    frame = next(steps).frame()
    assert (frame.settled_text, frame.cells, model.queries[0].max_tokens) == ("width", (), 7)
    engine.close()
    assert model.is_closed


@pytest.mark.parametrize(
    ("model", "name"),
    [("/srv/models/customer.gguf", "customer"), (r"C:\\models\\customer.gguf", "customer"), ("org/m-1.5", "org/m-1.5")],
)
def test_a_path_that_a_server_reports_as_its_model_is_not_passed_on(model, name):
    assert fill(FakeModel(RemoteAnswer(("width",), is_finished=True, model=model))).model == name


@pytest.mark.parametrize(
    ("text", "is_finished", "is_cut"),
    [("width", True, False), ("width", False, True), ("width\nheight = 1", True, True)],
)
def test_an_answer_that_its_server_or_the_line_limit_cut_is_cut(text, is_finished, is_cut):
    assert fill(FakeModel(RemoteAnswer((text,), is_finished=is_finished))).ending.is_cut is is_cut
