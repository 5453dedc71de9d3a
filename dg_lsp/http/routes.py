"""The endpoints: fills in the dialects of llama.cpp, OpenAI, Mistral, Tabby and Mercury, chats, reports, and status."""

import re
from dataclasses import dataclass, replace
from functools import partial

import attrs
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request

from dg_lsp.backends.remote.dialects import TRIGGER_HEADER
from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.canvas.fim import FIM_FAMILIES, FimFamily
from dg_lsp.context.document import LineIndex, TextStyle
from dg_lsp.context.edit_history import MAX_EDITS, Edit, EditHistory
from dg_lsp.context.languages import PLAIN_TEXT, language_id_of
from dg_lsp.context.window import Snippet, SnippetSource
from dg_lsp.engine.edit_source import NextEditRequest
from dg_lsp.engine.request import CHAT_DEADLINE_MS, CHAT_MAX_TOKENS, ChatRequest, FillRequest, FillResult, Priority
from dg_lsp.engine.scheduler import ready_engine
from dg_lsp.http.responses import Answer, Json, NativeAnswer, OpenAiAnswer, Stream
from dg_lsp.http.schemas import ActionBody, ApiError, ChatBody, CompletionBody, GenerationBody, NativeBody
from dg_lsp.http.service import RequestService, Service, allowed_snippets, language_header
from dg_lsp.postprocess.text_edits import all_applied, shared_ends
from dg_lsp.postprocess.validate import Candidate

MAX_TOKENS = 4096
_DEFAULT_MAX_TOKENS = 16
"""OpenAI's documented default of a completion."""
_NO_SUFFIX = "<|endoftext|>"
"""Continue sends it to Inception instead of an empty suffix."""
_NO_EDIT = "None"
"""Clients of Mercury expect it instead of an unchanged region."""
_APPLY_PATH = "/v1/apply/completions"
_APPLY = Turn(Role.SYSTEM, "Apply the update to the original code. Answer with the whole new code and nothing else.")
"""Mercury's template for applying an update contains no instruction."""
_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_FAMILIES = (
    *FIM_FAMILIES.values(),
    FimFamily("", "<|fim_begin|>{prefix}<|fim_hole|>{suffix}<|fim_end|>", ("DeepSeek in ASCII",)),
    FimFamily("", "<|code_prefix|>{prefix}<|code_suffix|>{suffix}<|code_middle|>", ("GLM",)),
)
"""The templates of prompts that clients send."""
_LANGUAGE_COMMENT = re.compile(r"(?:#|//|--|;|%|/\*|<!--) *language: *(\w[\w+#-]*)[^\n]*\n")
_REGION_START, _REGION_END, _CURSOR = "<|code_to_edit|>", "<|/code_to_edit|>", "<|cursor|>"
_HISTORY_START, _HISTORY_END = "<|edit_diff_history|>\n", "<|/edit_diff_history|>"
_FILE_START, _FILE_END, _PATH = "<|current_file_content|>\n", "<|/current_file_content|>", "current_file_path: "

router = APIRouter()
generate = partial(router.post, responses={200: {"content": {"application/json": {}, "text/event-stream": {}}}})


@dataclass(frozen=True, slots=True)
class RequestedGap:
    """What the request of a dialect contains about its gap."""

    prefix: str
    suffix: str
    language: str = ""
    path: str = ""
    client: str = ""
    """With a path: a newer request of the same client replaces the older one."""


# text


@generate("/infill")
async def infill(body: NativeBody, service: RequestService, http: Request) -> Response:
    """Fills a gap for clients of llama.cpp; `n_predict` 0 only fills the prompt cache."""
    gap = RequestedGap(body.input_prefix + body.prompt, body.input_suffix, body.language)
    request = _fill_request(service, http, gap, body, body.max_tokens, body.num_candidates)
    style = TextStyle()
    # clients send the newest snippet last, which is the most important one
    snippets = [
        Snippet(SnippetSource.GIVEN, extra.filename, style.to_model(extra.text)) for extra in body.input_extra[::-1]
    ]
    request = service.with_earlier_text(request, http)
    request = replace(request, snippets=allowed_snippets(snippets, service.engine.spec, service.settings))
    return _respond(service, http, request, NativeAnswer(body))


@generate("/completion")
@generate("/completions")
async def native_text(body: NativeBody, service: RequestService, http: Request) -> Response:
    """Continues a text for clients of llama.cpp; nothing is checked. `n_predict` 0 only fills the prompt cache."""
    request = _text_request(body, body.max_tokens, text=body.prompt)
    return _respond(service, http, request, NativeAnswer(body, is_text=True))


@generate("/v1/fim/completions")
@generate("/v1/completions")
async def openai_completions(body: CompletionBody, service: RequestService, http: Request) -> Response:
    """Fills a gap for clients of OpenAI, Mistral and, with `segments`, Tabby; continues a text without a language."""
    name = service.engine.spec.name
    gap = _completion_gap(body, is_code=http.url.path == "/v1/fim/completions")
    if gap is not None:
        fill = _fill_request(service, http, gap, body, body.max_tokens or -1, body.num_candidates)
        fill = service.with_earlier_text(fill, http)
        return _respond(service, http, fill, OpenAiAnswer(name, body))
    if body.num_candidates > 1:
        raise ApiError(400, "n must be 1 for a text without a language; send the language to get several", field="n")
    num_tokens = body.max_tokens if "max_tokens" in body.model_fields_set else _DEFAULT_MAX_TOKENS
    request = _text_request(body, num_tokens, text=body.prompt)
    return _respond(service, http, request, OpenAiAnswer(name, body, is_text=True))


@generate(_APPLY_PATH)
@generate("/v1/chat/completions")
async def chat(body: ChatBody, service: RequestService, http: Request) -> Response:
    """Answers a conversation, or applies an update to code in Mercury's template."""
    engine = service.engine_of(service.models.rewrite)
    name = engine.spec.name
    if not engine.spec.follows_instructions:
        raise ApiError(501, f"{name} follows no instructions; start dg-lsp serve with --model and one that does")
    turns = [_APPLY] if http.url.path == _APPLY_PATH else []
    turns += [Turn(_ROLES[message.role], message.text) for message in body.messages]
    num_tokens = body.max_completion_tokens or body.max_tokens or CHAT_MAX_TOKENS
    request = _text_request(body, num_tokens, turns=tuple(turns))
    return _respond(service, http, request, OpenAiAnswer(name, body, is_text=True))


@generate("/v1/edit/completions")
async def edit(body: ChatBody, service: RequestService, http: Request) -> Response:
    """Rewrites the region of Mercury's template: by the last edits, by a model of next edits, or by a fill."""
    gap, before, after = parse_edit_prompt(body.messages[-1].text)
    edits = parse_edit_history(body.messages[-1].text, gap.prefix + gap.suffix, gap.path)
    request = replace(_fill_request(service, http, gap, body, body.max_tokens or -1, 1), priority=Priority.REWRITE)
    body = body.model_copy(update={"diffusing": False, "stop": []})  # clients read whole regions
    regions = _edited_region(service, http, request, edits, before, after)
    return OpenAiAnswer(service.engine.spec.name, body).response(regions)


async def _edited_region(
    service: Service, http: Request, request: FillRequest, edits: tuple[Edit, ...], before: str, after: str
) -> Stream:
    """The region after next edits; without them, and without a model that proposes some, with a fill at its cursor."""
    text = request.snapshot.text
    region = range(request.offset - len(before), request.offset + len(after))
    next_edits = NextEditRequest(request.snapshot, LineIndex.of(text), edits, request.offset)
    next_edits = replace(next_edits, deadline_ms=request.deadline_ms or next_edits.deadline_ms)
    proposals = await service.next_edits(next_edits, region, http)
    if proposals or service.models.edit_source is not None:
        result = FillResult.unfinished()
        edited = all_applied(proposals, text)[region.start :].removesuffix(text[region.stop :]) if proposals else ""
    else:
        [filled] = [part async for part in service.stream(request, http)]
        assert isinstance(filled, FillResult)
        result = filled
        edited = f"{before}{result.text}{after}" if result.text else ""
    content = f"```\n{edited}\n```" if edited else _NO_EDIT
    candidate = next(iter(result.candidates), Candidate("", 0.0))
    yield replace(result, candidates=(replace(candidate, text=content),))


def _respond(service: Service, http: Request, request: FillRequest | ChatRequest, answer: Answer) -> Response:
    """The whole answer, or the stream of its drafts or of its text as it grows."""
    has_frames = answer.body.stream and (answer.body.diffusing or isinstance(request, ChatRequest))
    may_be_unfinished = request.max_tokens == 0
    return answer.response(service.stream(request, http, has_frames=has_frames, may_be_unfinished=may_be_unfinished))


def _fill_request(
    service: Service, http: Request, gap: RequestedGap, body: GenerationBody, max_tokens: int, num_candidates: int
) -> FillRequest:
    """The request for a gap; no tokens only fill the prompt cache, fewer take the setting.

    Several candidates are requested by the user, one by typing; dg-lsp as a client sends the header.
    """
    if body.ignore_eos:
        raise ApiError(400, "Field 'ignore_eos' does not apply to code: leave it out", field="ignore_eos")
    is_warm_up = max_tokens == 0
    is_invoked = num_candidates > 1 or http.headers.get(TRIGGER_HEADER) == "invoked"
    priority = Priority.WARM_UP if is_warm_up else Priority.INVOKED if is_invoked else Priority.TYPED
    return FillRequest(
        service.snapshot(gap.prefix + gap.suffix, gap.language or PLAIN_TEXT, gap.path, gap.client),
        len(gap.prefix),
        num_candidates=num_candidates,
        max_tokens=min(max_tokens, MAX_TOKENS) if max_tokens >= 0 else None,
        deadline_ms=CHAT_DEADLINE_MS if is_warm_up else body.deadline_ms,
        is_followed=False,  # plugins cache completions and request the next one themselves
        seed=body.seed,
        sampler=body.sampler,
        priority=priority,
    )


def _text_request(
    body: GenerationBody, max_tokens: int, *, turns: tuple[Turn, ...] = (), text: str | None = None
) -> ChatRequest:
    return ChatRequest(
        turns,
        subject="",
        text=text,
        max_tokens=min(max_tokens, MAX_TOKENS) if max_tokens >= 0 else MAX_TOKENS,
        deadline_ms=body.deadline_ms or CHAT_DEADLINE_MS,
        seed=body.seed,
        stops=tuple(body.stop),
        sampler=attrs.evolve(body.sampler, top_k=None if body.top_k is None else max(0, body.top_k)),
        ignores_end=body.ignore_eos,
    )


def _completion_gap(body: CompletionBody, *, is_code: bool) -> RequestedGap | None:
    """The gap of a completion; None where neither the path nor a field shows that the prompt is code around a gap."""
    if segments := body.segments:
        client = body.user if segments.filepath else ""  # without a path, two requests of a user may be for two files
        language = body.language or language_id_of(segments.filepath)
        return RequestedGap(segments.prefix, segments.suffix, language, segments.filepath, client)
    # clients without a `suffix` field (Zed, Continue for `openai` and `vllm`) send the template of another model
    parts = next((parts for family in _FAMILIES if (parts := family.split(body.prompt))), None)
    prefix, suffix = parts or (body.prompt, "")
    comment = _LANGUAGE_COMMENT.match(prefix)  # minuet's first line
    language = body.language or (comment[1].lower() if comment else "")
    if not (is_code or parts or language or "suffix" in body.model_fields_set):
        return None
    return RequestedGap(prefix, suffix if body.suffix in ("", _NO_SUFFIX) else body.suffix, language)


def parse_edit_prompt(text: str) -> tuple[RequestedGap, str, str]:
    """The gap in Mercury's template, and the text of its region before and after the cursor.

    Raises:
        ApiError: a mark is missing.
    """
    path = ""
    file = text.partition(_FILE_START)[2].rpartition(_FILE_END)[0]
    if file.startswith(_PATH):
        path, _, file = file.removeprefix(_PATH).partition("\n")
    above, has_start, rest = file.partition(_REGION_START)
    region, has_end, below = rest.partition(_REGION_END)
    # each mark of the region is a line of its own
    before, has_cursor, after = region.removeprefix("\n").removesuffix("\n").partition(_CURSOR)
    if not (has_start and has_end and has_cursor):
        marks = f"{_FILE_START.strip()}, {_REGION_START}, {_CURSOR} and {_REGION_END}"
        raise ApiError(400, f"the last message needs {marks}: mark file, region and cursor", field="messages")
    below = below.removeprefix("\n")
    return RequestedGap(above + before, f"{after}\n{below}", language_id_of(path), path), before, after


def parse_edit_history(text: str, code: str, path: str) -> tuple[Edit, ...]:
    """The last edits of the file in Mercury's template, newest first, without those whose lines are gone."""
    history = text.partition(_HISTORY_START)[2].partition(_HISTORY_END)[0]
    hunks = list[str]()
    for entry in re.split(r"^--- ", history, flags=re.MULTILINE)[1:]:
        heading, *of_entry = re.split(r"^@@.*\n", entry, flags=re.MULTILINE)
        if heading.partition("\n")[0].removeprefix("a/") == path:
            hunks += of_entry
    edits = list[Edit]()
    result = LineIndex.of(code)
    for hunk in hunks[-MAX_EDITS:]:  # the time for each grows with the length of the code
        lines = re.split(r"(?<=\n)", hunk)  # not at a form feed, which code may contain
        old, new = ("".join(line[1:] for line in lines if line[:1] in f" {sign}") for sign in "-+")
        at = f"\n{code}\n".find(f"\n{new}") if new else -1
        if at >= 0:
            head, tail = shared_ends(old, new)  # the unchanged lines of a hunk are no part of its edit
            before = LineIndex.of(code[:at] + old + code[at + len(new) :])
            made = EditHistory()
            made.change(before, at + head, at + len(old) - tail, new[head : len(new) - tail], 0.0)
            edits += made.edits(result, 0.0)
    return tuple(reversed(edits))


# reports and status


@router.post("/v1/events")
@router.post("/feedback")
async def feedback(body: ActionBody, service: RequestService) -> Json:
    """Counts a user action that a client of Tabby, or Cursortab, reports."""
    service.metrics.feedback.labels(body.action).inc()
    return {"status": "ok"}


@router.get("/v1/health")
@router.get("/health")
async def health(service: RequestService) -> Json:
    """200 when the model of completions is loaded, 503 before."""
    _ = service.engine
    return {"status": "ok"}


@router.get("/models")
@router.get("/v1/models")
async def models(service: RequestService, http: Request) -> Json:
    """The loaded models, that of completions first: a header names its languages, as in an answer."""
    http.state.headers = language_header(service.engine.spec)
    engines = filter(None, (ready_engine(scheduler.ready) for scheduler in service.models.schedulers))
    data = [
        {
            "id": engine.spec.name,
            "object": "model",
            "created": service.started,
            "owned_by": "dg-lsp",
            "meta": {"n_vocab": engine.spec.vocab_size, "n_ctx_train": engine.spec.max_prompt_tokens},
        }
        for engine in engines
    ]
    return {"object": "list", "data": data}


@router.get("/props")
async def props(service: RequestService) -> Json:
    """What clients of llama.cpp read before they build a prompt: its length and the number of slots."""
    return {
        "default_generation_settings": {"n_ctx": service.context_size},
        "total_slots": len(service.engine.footprint.busy_slots),
        "model_alias": service.engine.spec.name,
        "is_sleeping": service.models.completion.is_asleep,
    }


@router.get("/slots")
async def slots(service: RequestService) -> list[Json]:
    """One object per slot of the prompt cache; none for a remote server."""
    size = service.context_size
    engine = service.models.completion.engine
    busy = () if engine is None else engine.footprint.busy_slots
    return [{"id": number, "n_ctx": size, "is_processing": is_busy} for number, is_busy in enumerate(busy)]


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: RequestService, http: Request) -> Response:
    """Prometheus' text format, also before the model is loaded."""
    return Response(service.metrics.exposition(is_operator=http.state.is_operator), media_type=CONTENT_TYPE_PLAIN_0_0_4)
