"""Prompt of a cursor position, and the layout function of a prompt format."""

from dataclasses import replace

from dg_lsp.canvas.chat import TEMPLATES, has_template, instruct_layout
from dg_lsp.canvas.fim import SUFFIX_SHARE, fim_layout
from dg_lsp.canvas.infill import infill_layout
from dg_lsp.canvas.layout import Layout, Tokenizer
from dg_lsp.canvas.spec import ModelSpec, PromptFormat
from dg_lsp.context.document import Snapshot
from dg_lsp.context.window import CHARS_PER_TOKEN, Prompt, prompt_at, shown_path
from dg_lsp.errors import RequestError

_BUILDERS = {
    PromptFormat.FIM: fim_layout,
    PromptFormat.PREFIX: fim_layout,
    PromptFormat.INFILL: infill_layout,
    PromptFormat.INSTRUCT: instruct_layout,
}


def prompt_of(
    snapshot: Snapshot,
    offset: int,
    max_tokens: int,
    suffix_lines: int | None = None,
    prefix_share: float = 1.0,
    ahead: int = 0,
) -> Prompt:
    """The text around a cursor, about as much of it as a prompt of `max_tokens` holds.

    A tokenizer cuts it to the exact length. Without one, a prefix of `1 - SUFFIX_SHARE` leaves room for the suffix.
    With `ahead`, it starts where it will start when so many more tokens are typed.

    Raises:
        PositionError: the buffer is shorter than `offset`.
    """
    chars = max_tokens * CHARS_PER_TOKEN
    prefix_chars, suffix_chars = int(chars * prefix_share), int(chars * SUFFIX_SHARE)
    prompt = prompt_at(
        snapshot,
        offset,
        prefix_chars=prefix_chars,
        suffix_chars=suffix_chars,
        suffix_lines=suffix_lines,
        ahead=ahead,
    )
    return replace(prompt, path=shown_path(snapshot.file_uri), language=snapshot.language)


def layout_of(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """The layout of a prompt in the spec's format, with at most `max_tokens` prompt tokens.

    Raises:
        ModelUnsupportedError: the vocabulary lacks tokens that the format needs.
    """
    if spec.prompt_format is not PromptFormat.INSTRUCT and not spec.start_ids and spec.template in TEMPLATES:
        # instruct models were trained with the template's first token on all texts
        token = tokenizer.special(TEMPLATES[spec.template].bos)
        spec = replace(spec, start_ids=() if token is None else (token,))
    return _BUILDERS[spec.prompt_format](prompt, tokenizer, spec, max_tokens)


def in_format(spec: ModelSpec, name: str) -> ModelSpec:
    """The spec with this prompt format; an empty name keeps the model's own.

    A causal pass does not see a suffix that is frozen in the canvas, so infill layouts have no causal head. Expected
    passes of the model file apply to the model's own format only.

    Raises:
        RequestError: the model lacks what the format needs.
    """
    wanted = PromptFormat(name) if name else spec.prompt_format
    lacks = {
        PromptFormat.FIM: "" if spec.fim else "fill-in-the-middle tokens",
        PromptFormat.INFILL: "" if spec.has_free_canvas else "canvas between frozen text",
        PromptFormat.INSTRUCT: "" if has_template(spec) else "known chat template",
        PromptFormat.PREFIX: "",
    }
    if name and lacks[wanted]:
        others = ", ".join(format_.value for format_ in PromptFormat if not lacks[format_])
        raise RequestError(f"{spec.name} has no {lacks[wanted]}, which the format {wanted} needs; choose {others}")
    has_head = spec.has_causal_head and wanted is not PromptFormat.INFILL
    expectations = spec.expectations if wanted is spec.prompt_format else ()
    return replace(spec, prompt_format=wanted, has_causal_head=has_head, expectations=expectations)
