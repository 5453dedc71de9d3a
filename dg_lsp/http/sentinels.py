"""Prompts that a client has written for another model: its sentinels tell where prefix and suffix are.

Clients that know no `suffix` field (Zed, Continue for `openai` and `vllm`) put a fill-in-the-middle template into the
prompt. What stands between the sentinels is all that is needed of it.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """Three marks, in the order in which they stand."""

    first: str
    second: str
    last: str
    is_suffix_first: bool = False


TEMPLATES = (
    Template("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite
    Template("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    Template("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Template("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    Template("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    Template("<PRE>", "<SUF>", "<MID>"),  # Code Llama
    Template("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    Template("[SUFFIX]", "[PREFIX]", "", is_suffix_first=True),  # Codestral
)

_COMMENTED = re.compile(r"(?:#|//|--|;|%|/\*|<!--) *language: *(\w[\w+#-]*)[^\n]*\n")


def parts_of(prompt: str) -> tuple[str, str]:
    """Prefix and suffix of a prompt; all is prefix where nothing marks a suffix."""
    for template in TEMPLATES:
        if (parts := _between(prompt, template)) is not None:
            return parts
    return prompt, ""


def language_in(prefix: str) -> str:
    """The language that minuet's first line tells (`# language: python`), or nothing."""
    found = _COMMENTED.match(prefix)
    return found[1].lower() if found else ""


def _between(prompt: str, template: Template) -> tuple[str, str] | None:
    start = prompt.find(template.first)
    middle = prompt.find(template.second, start + len(template.first)) if start >= 0 else -1
    if middle < 0:
        return None
    end = prompt.rfind(template.last) if template.last else len(prompt)
    if end < middle:
        return None
    one = prompt[start + len(template.first) : middle]
    other = prompt[middle + len(template.second) : end]
    if template.first == "<PRE>":  # Code Llama's have a blank around them
        one, other = one.removeprefix(" ").removesuffix(" "), other.removesuffix(" ")
    return (other, one) if template.is_suffix_first else (one, other)
