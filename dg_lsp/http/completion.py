"""Completions from results, and the prompts and snippets that clients send."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from dg_lsp.canvas.fim import FIM_FAMILIES, FimFamily, takes_snippets
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.context.document import Snapshot
from dg_lsp.context.eligibility import Eligibility
from dg_lsp.context.exclusion import Exclusion, cut, mask_secrets
from dg_lsp.context.languages import language_id_of
from dg_lsp.context.snippets import MAX_CHARS, NO_SNIPPETS, Snippet, Snippets
from dg_lsp.context.window import PATH_PARTS
from dg_lsp.engine.result import FillResult
from dg_lsp.http.errors import ApiError
from dg_lsp.http.request_schemas import CompletionBody
from dg_lsp.http.response_schemas import FinishReason, StopType
from dg_lsp.postprocess.validate import Candidate
from dg_lsp.settings import Settings

_OTHER_FAMILIES = (
    FimFamily("", "<|fim_begin|>{prefix}<|fim_hole|>{suffix}<|fim_end|>", ("DeepSeek in ASCII",)),
    FimFamily("", "<|code_prefix|>{prefix}<|code_suffix|>{suffix}<|code_middle|>", ("GLM",)),
)
"""Templates that some clients send, besides those of the known families."""
_LANGUAGE_COMMENT = re.compile(r"(?:#|//|--|;|%|/\*|<!--) *language: *(\w[\w+#-]*)[^\n]*\n")
_REGION_START, _REGION_END, _CURSOR = "<|code_to_edit|>", "<|/code_to_edit|>", "<|cursor|>"
_FILE_START, _FILE_END, _PATH = "<|current_file_content|>\n", "<|/current_file_content|>", "current_file_path: "


@dataclass(frozen=True, slots=True)
class Completion:
    """One text for the client."""

    text: str
    stop: str = ""  # the stop text that ended it, if one did
    is_cut: bool = False  # the limit of tokens, the context or the deadline ended it

    @property
    def finish_reason(self) -> FinishReason:
        """`stop` or `length`, as OpenAI's API names them."""
        return "length" if self.is_cut and not self.stop else "stop"

    @property
    def stop_type(self) -> StopType:
        """The same as llama.cpp names it."""
        return "word" if self.stop else "limit" if self.is_cut else "eos"


def completions(result: FillResult, stops: Sequence[str] = (), min_indent: int = 0) -> list[Completion]:
    """One completion per candidate, best first; an empty one if there is no candidate.

    A stop ends a completion, and so does a line after the first with fewer leading blanks than `min_indent`.
    """
    candidates = result.candidates or (Candidate("", 0.0, is_cut=result.ending.is_cut),)
    found = []
    for candidate in candidates:
        kept = _cut_at_dedent(candidate.text, min_indent)
        found.append(cut_at_stops(kept, stops, is_cut=candidate.is_cut and kept == candidate.text))
    return found


def allowed_snippets(snippets: Iterable[Snippet], spec: ModelSpec, settings: Settings) -> Snippets:
    """The snippets that the settings allow, the most important first, under short paths, with secrets masked."""
    if not takes_snippets(spec, settings.context.enabled):
        return NO_SNIPPETS
    allowed, num_left = [], MAX_CHARS
    for snippet in snippets:
        path = snippet.path.replace("\\", "/")
        if eligibility(path, snippet.text, language_id_of(path), settings).is_served:
            short = " ".join("/".join(path.split("/")[-PATH_PARTS:]).split())  # on one line
            text = cut(snippet.text, num_left)
            num_left -= len(text)
            allowed.append(Snippet(snippet.source, short or "snippet", mask_secrets(text)))
        if not num_left:
            break
    return Snippets(tuple(allowed))


def eligibility(path: str, text: str, language: str, settings: Settings) -> Eligibility:
    """Whether the settings allow a file of the client's machine; `path` is not looked up on this one."""
    snapshot = Snapshot(f"client:///{quote(path.lstrip('/'))}", 0, text, language)
    return Eligibility.of_document(snapshot, Exclusion(settings.privacy))


def cut_at_stops(text: str, stops: Sequence[str], *, is_cut: bool) -> Completion:
    """`text` up to the first stop in it."""
    found = [(offset, stop) for stop in stops if stop and (offset := text.find(stop)) >= 0]
    offset, stop = min(found, default=(len(text), ""))
    return Completion(text[:offset], stop, is_cut=is_cut)


def split_fim_prompt(prompt: str) -> tuple[str, str]:
    """Prefix and suffix of a prompt in another model's template; a prompt without its tokens is all prefix.

    Clients without a `suffix` field (Zed, Continue for `openai` and `vllm`) send such a template.
    """
    families = (*FIM_FAMILIES.values(), *_OTHER_FAMILIES)
    return next((parts for family in families if (parts := family.split(prompt))), (prompt, ""))


def is_raw_prompt(body: CompletionBody) -> bool:
    """Nothing in the request shows that the prompt is code around a gap: no language, no suffix, no sentinels."""
    prompt = body.prompt[0] if body.prompt else ""
    is_code = bool(body.language or comment_language(prompt)) or "suffix" in body.model_fields_set
    return not is_code and split_fim_prompt(prompt) == (prompt, "")


def comment_language(prefix: str) -> str:
    """The language in minuet's first line (`# language: python`), or an empty string."""
    found = _LANGUAGE_COMMENT.match(prefix)
    return found[1].lower() if found else ""


class EditPrompt(NamedTuple):
    """Mercury's template: the region around the cursor, and the file above and below it."""

    path: str
    above: str
    before: str
    after: str
    below: str

    @property
    def language(self) -> str:
        """LSP language id, from the path."""
        return language_id_of(self.path)


def parse_edit_prompt(text: str) -> EditPrompt:
    """The parts of the template.

    Raises:
        ApiError: a mark is missing.
    """
    path = ""
    file, is_file, _ = text.partition(_FILE_START)[2].rpartition(_FILE_END)
    if is_file:
        text = file
        if text.startswith(_PATH):
            path, _, text = text.removeprefix(_PATH).partition("\n")
    above, has_start, rest = text.partition(_REGION_START)
    region, has_end, below = rest.partition(_REGION_END)
    # each mark of the region is a line of its own
    before, has_cursor, after = region.removeprefix("\n").removesuffix("\n").partition(_CURSOR)
    for mark, is_there in ((_REGION_START, has_start), (_REGION_END, has_end), (_CURSOR, has_cursor)):
        if not is_there:
            raise ApiError(400, f"the last message has no {mark}: mark the region and the cursor", field="messages")
    return EditPrompt(path, above if is_file else "", before, after, below.removeprefix("\n") if is_file else "")


def _cut_at_dedent(text: str, min_indent: int) -> str:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines[1:], 1):
        if line.strip() and len(line) - len(line.lstrip(" \t")) < min_indent:
            return "".join(lines[:number]).rstrip("\r\n")
    return text
