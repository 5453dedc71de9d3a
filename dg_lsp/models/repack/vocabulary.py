"""A checkpoint's tokenizer.json as llama.cpp's `gemma4` vocabulary. It is copied, not run: no tokenizer is needed."""

import re
from collections.abc import Mapping
from typing import Any

from dg_lsp import gguf as v
from dg_lsp.gguf import Value

NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
"""llama.cpp's kinds of tokens."""
_PRINTED = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'}
"""Sentinels that llama.cpp's own conversion has printed, for who reads the answer looks for them."""
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_SCORE = -1000.0
_NAMED = {
    "bos_token_id": "<bos>",
    "eos_token_id": "<eos>",
    "unknown_token_id": "<unk>",
    "padding_token_id": "<pad>",
    "mask_token_id": "<mask>",
}


def vocabulary(tokenizer: Mapping[str, Any], size: int, chat_template: str = "") -> dict[str, Value]:
    """The `tokenizer.*` keys, `size` tokens long.

    Raises:
        KeyError, TypeError, ValueError: it is no BPE tokenizer of Gemma's kind.
    """
    model = tokenizer["model"]
    if model["type"] != "BPE" or not model.get("byte_fallback"):
        raise ValueError("no BPE with bytes to fall back on")
    ids = {**model["vocab"]}
    added = {entry["content"]: entry for entry in tokenizer.get("added_tokens", ())}
    ids |= {text: entry["id"] for text, entry in added.items()}
    if ids and max(ids.values()) >= size:
        raise ValueError(f"token {max(ids.values())} of {size}")
    tokens, kinds = [f"<unused_{i}>" for i in range(size)], [UNUSED] * size
    for token, i in ids.items():
        tokens[i], kinds[i] = token, _kind(token, added.get(token), in_model=token in model["vocab"])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    found = {
        "tokenizer.ggml.model": v.text("gemma4"),
        "tokenizer.ggml.tokens": v.texts(tokens),
        "tokenizer.ggml.scores": v.float32s([_SCORE] * size),
        "tokenizer.ggml.token_type": v.int32s(kinds),
        "tokenizer.ggml.merges": v.texts(merges),
        **{f"tokenizer.ggml.{key}": v.uint32(ids[token]) for key, token in _NAMED.items() if token in ids},
        "tokenizer.ggml.add_space_prefix": v.flag(False),
        "tokenizer.ggml.add_bos_token": v.flag(True),
    }
    if chat_template:
        found["tokenizer.chat_template"] = v.text(chat_template)
    return found


def _kind(token: str, added: Mapping[str, Any] | None, *, in_model: bool) -> int:
    """As llama.cpp's own conversion of Gemma 4 decides."""
    if token in _PRINTED:
        return USER_DEFINED
    if _BYTE.fullmatch(token):
        return BYTE
    if added is None:
        return NORMAL
    if added.get("special"):
        return CONTROL
    return NORMAL if in_model else USER_DEFINED
