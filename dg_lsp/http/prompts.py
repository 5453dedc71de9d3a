"""Parses prompts that a client has formatted for another model.

Clients without a `suffix` field (Zed, Continue for `openai` and `vllm`) send a fill-in-the-middle template with
sentinels. Clients of Mercury send the file with marks around the region to edit.
"""

import re
from dataclasses import dataclass

from dg_lsp.http.errors import ApiError


@dataclass(frozen=True, slots=True)
class FimTemplate:
    """Three sentinels in the order in which they occur."""

    first: str
    second: str
    last: str
    is_suffix_first: bool = False


FIM_TEMPLATES = (
    FimTemplate("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite
    FimTemplate("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    FimTemplate("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    FimTemplate("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    FimTemplate("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    FimTemplate("<PRE>", "<SUF>", "<MID>"),  # Code Llama
    FimTemplate("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    FimTemplate("[SUFFIX]", "[PREFIX]", "", is_suffix_first=True),  # Codestral
)
_LANGUAGE_COMMENT = re.compile(r"(?:#|//|--|;|%|/\*|<!--) *language: *(\w[\w+#-]*)[^\n]*\n")
_REGION_START, _REGION_END, _CURSOR = "<|code_to_edit|>", "<|/code_to_edit|>", "<|cursor|>"
_FILE_START, _FILE_END, _PATH = "<|current_file_content|>\n", "<|/current_file_content|>", "current_file_path: "
_LANGUAGES = {"py": "python", "pyi": "python"}


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """Mercury's template: the region to edit, the cursor in it, and the file around it."""

    above: str
    before: str
    """From the start of the region to the cursor."""
    after: str
    """From the cursor to the end of the region, without its last line end."""
    below: str
    path: str = ""

    @property
    def language(self) -> str:
        """LSP language id from the file extension; empty without a path."""
        extension = self.path.rpartition(".")[2].lower()
        return _LANGUAGES.get(extension, extension)


def split_fim_prompt(prompt: str) -> tuple[str, str]:
    """Prefix and suffix; a prompt without sentinels is all prefix."""
    for template in FIM_TEMPLATES:
        if (parts := _split_at(prompt, template)) is not None:
            return parts
    return prompt, ""


def comment_language(prefix: str) -> str:
    """The language in minuet's first line (`# language: python`), or an empty string."""
    found = _LANGUAGE_COMMENT.match(prefix)
    return found[1].lower() if found else ""


def parse_edit_prompt(text: str) -> EditPrompt:
    """Parses Mercury's template.

    Raises:
        ApiError: a mark is missing.
    """
    shown, is_file, path = text, False, ""
    file, found, _ = text.partition(_FILE_START)[2].rpartition(_FILE_END)
    if found:
        shown, is_file = file, True
        if shown.startswith(_PATH):
            path, _, shown = shown.removeprefix(_PATH).partition("\n")
    above, has_start, rest = shown.partition(_REGION_START)
    region, has_end, below = rest.partition(_REGION_END)
    before, has_cursor, after = region.removeprefix("\n").removesuffix("\n").partition(_CURSOR)
    marks = ((_REGION_START, has_start), (_REGION_END, has_end), (_CURSOR, has_cursor))
    for mark, is_there in marks:
        if not is_there:
            raise ApiError(400, f"the last message has no {mark}: mark the region and the cursor", field="messages")
    # each mark of the region is a line of its own
    return EditPrompt(above if is_file else "", before, after, below.removeprefix("\n") if is_file else "", path)


def _split_at(prompt: str, template: FimTemplate) -> tuple[str, str] | None:
    start = prompt.find(template.first)
    middle = prompt.find(template.second, start + len(template.first)) if start >= 0 else -1
    if middle < 0:
        return None
    end = prompt.rfind(template.last) if template.last else len(prompt)
    if end < middle:
        return None
    one = prompt[start + len(template.first) : middle]
    other = prompt[middle + len(template.second) : end]
    if template.first == "<PRE>":  # Code Llama puts blanks around its sentinels
        one, other = one.removeprefix(" ").removesuffix(" "), other.removesuffix(" ")
    return (other, one) if template.is_suffix_first else (one, other)
