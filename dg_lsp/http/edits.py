"""`POST /v1/edit/completions`: Mercury's template, answered by a fill at the cursor.

The region comes back with the fill in it and is otherwise as it was; with nothing to add, `None` says so, as its
readers expect.
"""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from dg_lsp.engine.request import Priority
from dg_lsp.http.asked import DEFAULT_LANGUAGE, Asked, choices_of
from dg_lsp.http.messages import chat_frame, piece, turns_of, whole
from dg_lsp.http.refusal import Refusal
from dg_lsp.http.service import Service
from dg_lsp.http.timings import diffusion, timings, usage
from dg_lsp.http.wire import DONE, answer, at_once, event, events

_OPEN, _CLOSE, _CURSOR = "<|code_to_edit|>", "<|/code_to_edit|>", "<|cursor|>"
_FILE, _END, _PATH = "<|current_file_content|>\n", "<|/current_file_content|>", "current_file_path: "
NOTHING = "None"
_LANGUAGES = {"py": "python", "pyi": "python"}


@dataclass(frozen=True, slots=True)
class Region:
    """What may be edited, the cursor in it, and the file around it."""

    above: str
    before: str
    """From the region's start to the cursor."""
    after: str
    """To the region's last character, its line end left out."""
    below: str
    path: str = ""

    @property
    def language(self) -> str:
        """By the file's extension; without a path, the usual one."""
        extension = self.path.rpartition(".")[2].lower()
        return _LANGUAGES.get(extension, extension) if self.path else DEFAULT_LANGUAGE


async def edit(request: Request) -> Response:
    """The region with the best fill at its cursor, in a fence."""
    service: Service = request.app.state.service
    fields = await service.read(request)
    region = region_of(turns_of(fields)[-1].text)
    asked = Asked(
        region.above + region.before,
        f"{region.after}\n{region.below}",
        language=region.language,
        path=region.path,
        priority=Priority.REWRITE,
        max_tokens=fields.integer("max_tokens", 0, least=0, most=4096) or None,
    )
    is_streamed = fields.flag("stream")
    result = await service.fill(asked, request)
    text = choices_of(asked, result)[0].text
    content = f"```\n{region.before}{text}{region.after}\n```" if text else NOTHING
    if is_streamed:
        frame = chat_frame(result.model, "chat.completion.chunk")
        return events(
            at_once(*(event({**frame, "choices": [one]}) for one in (piece(content), piece("", "stop"))), DONE)
        )
    costs = {"usage": usage(result), "timings": timings(result), "diffusion": diffusion(result)}
    return answer({**chat_frame(result.model, "chat.completion"), "choices": [whole(content, "stop")], **costs})


def region_of(question: str) -> Region:
    """The parts of Mercury's template.

    Raises:
        Refusal: a mark is missing.
    """
    shown, is_file, path = question, False, ""
    after_mark, found, _ = question.partition(_FILE)[2].rpartition(_END)
    if found:
        shown, is_file = after_mark, True
        if shown.startswith(_PATH):
            path, _, shown = shown.removeprefix(_PATH).partition("\n")
    above, opened, rest = shown.partition(_OPEN)
    inside, closed, below = rest.partition(_CLOSE)
    before, cursor, after = inside.removeprefix("\n").removesuffix("\n").partition(_CURSOR)
    missing = [mark for mark, found in ((_OPEN, opened), (_CLOSE, closed), (_CURSOR, cursor)) if not found]
    if missing:
        raise Refusal(400, f"the last message has no {missing[0]}, which says where to edit", field="messages")
    # the marks stand on lines of their own
    return Region(above if is_file else "", before, after, below.removeprefix("\n") if is_file else "", path)
