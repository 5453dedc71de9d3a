"""A completion request in no dialect, and the texts that answer it."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from dg_lsp.canvas.fim import takes_extra
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.context.snippets import NO_SNIPPETS, Snippet, Snippets
from dg_lsp.context.window import PATH_PARTS
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.engine.result import FillResult
from dg_lsp.http.schemas import DiffusionStats, FinishReason
from dg_lsp.settings import Settings

MAX_TOKENS = 4096
DEFAULT_LANGUAGE = "python"
"""Python's grammar is the only one that completions are checked against; text that is no Python is not checked."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A gap between two texts."""

    prefix: str
    suffix: str
    language: str = DEFAULT_LANGUAGE
    """LSP language id."""
    path: str = ""
    """Path of the file on the client: part of some prompts, never opened."""
    client: str = ""
    """Identifies the client: its newer request for the same path replaces this one. Empty replaces nothing."""
    num_candidates: int = 1
    max_tokens: int | None = None
    """None takes the setting."""
    deadline_ms: float | None = None
    """Counted from arrival; None takes the setting."""
    seed: int = 0
    priority: Priority | None = None
    """None: one candidate counts as typed, several as invoked by the user."""
    stops: tuple[str, ...] = ()
    """Texts that end the completion and are not part of it."""
    min_indent: int = 0
    """A line after the first with fewer leading blanks ends the completion."""
    snippets: tuple[Snippet, ...] = ()
    """Code of other files, the most important first."""

    def to_engine(self, number: int, spec: ModelSpec, settings: Settings) -> FillRequest:
        """The engine's request; `number` is unique, so that no request cancels another one."""
        default = Priority.INVOKED if self.num_candidates > 1 else Priority.TYPED
        uri = f"http:{quote(self.path)}?request={number}"
        return FillRequest(
            Snapshot(uri, 0, self.prefix + self.suffix, self.language),
            len(self.prefix),
            num_candidates=self.num_candidates,
            max_tokens=self.max_tokens,
            deadline_ms=self.deadline_ms,
            seed=self.seed,
            snippets=self._allowed_snippets(settings) if takes_extra(spec, settings.context.enabled) else NO_SNIPPETS,
            priority=self.priority if self.priority is not None else default,
        )

    def completions(self, result: FillResult) -> tuple["Completion", ...]:
        """One completion per candidate, best first; an empty one if there is no candidate."""
        is_full = self.max_tokens is not None and result.output_tokens >= self.max_tokens
        texts = [candidate.text for candidate in result.candidates] or [""]
        return tuple(cut_at_stops(_cut_at_dedent(text, self.min_indent), self.stops, is_full=is_full) for text in texts)

    def _allowed_snippets(self, settings: Settings) -> Snippets:
        exclusion, allowed = Exclusion(settings.privacy), []
        for snippet in self.snippets:
            path = snippet.path.replace("\\", "/")
            snapshot = Snapshot(f"file:///{quote(path.lstrip('/'))}", 0, snippet.text, self.language)
            if exclusion.reason(snapshot) is None:
                allowed.append(Snippet(snippet.source, _short_path(path), snippet.text))
        return Snippets(tuple(allowed), settings.context.max_fraction)


@dataclass(frozen=True, slots=True)
class Completion:
    """One text for the client."""

    text: str
    stop: str = ""
    """The stop text that ended it, if one did."""
    is_full: bool = False
    """It has as many tokens as allowed and might go on."""

    @property
    def finish_reason(self) -> FinishReason:
        """`stop` or `length`, as OpenAI's API names them."""
        return "length" if self.is_full and not self.stop else "stop"


def cut_at_stops(text: str, stops: Sequence[str], *, is_full: bool) -> Completion:
    """`text` up to the first stop in it."""
    found = [(offset, stop) for stop in stops if stop and (offset := text.find(stop)) >= 0]
    if not found:
        return Completion(text, is_full=is_full)
    offset, stop = min(found)
    return Completion(text[:offset], stop, is_full=is_full)


def response_frame(kind: str, model: str) -> dict[str, Any]:
    """The first fields of a response of OpenAI's API and of each of its events; `kind` is the value of `object`."""
    prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def usage(result: FillResult) -> dict[str, int | dict[str, int]]:
    """OpenAI's `usage`."""
    num_output = result.output_tokens
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": num_output,
        "total_tokens": result.prompt_tokens + num_output,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
    }


def costs(result: FillResult) -> dict[str, Any]:
    """`timings` as llama.cpp names them, and `diffusion`, our own statistics."""
    num_output, num_prompt = result.output_tokens, result.prompt_tokens - result.cached_tokens
    ms, length = result.timings.denoise, result.canvas_length
    timings = {
        "cache_n": result.cached_tokens,
        **_stage("prompt", num_prompt, result.timings.prefill),
        **_stage("predicted", num_output, ms),
    }
    diffusion = DiffusionStats(
        decoder=result.decoder,
        canvas_length=length,
        canvas_tokens=result.num_blocks * length,
        blocks=result.num_blocks,
        steps=result.steps,
        steps_per_second=_ratio(1e3 * result.steps, ms),
        ms_per_step=_ratio(ms, result.steps),
        tokens_per_forward=round(result.tokens_per_forward, 3),
        reused_prompt_tokens=result.cached_tokens,
    )
    return {"timings": timings, "diffusion": diffusion}


def _cut_at_dedent(text: str, min_indent: int) -> str:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines[1:], 1):
        if line.strip() and len(line) - len(line.lstrip(" \t")) < min_indent:
            return "".join(lines[:number]).rstrip("\r\n")
    return text


def _short_path(path: str) -> str:
    """The last parts of the path, on one line."""
    return " ".join("/".join(path.split("/")[-PATH_PARTS:]).split()) or "snippet"


def _stage(name: str, num_tokens: int, ms: float) -> dict[str, int | float]:
    return {
        f"{name}_n": num_tokens,
        f"{name}_ms": round(ms, 3),
        f"{name}_per_token_ms": _ratio(ms, num_tokens),
        f"{name}_per_second": _ratio(1e3 * num_tokens, ms),
    }


def _ratio(amount: float, total: float) -> float:
    return round(amount / total, 3) if total else 0.0
