"""Tiny models with the special tokens of published ones, and one token for each byte or character."""

import re
from dataclasses import dataclass

import numpy as np
from tiny_masked import letters

from dg_lsp import gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
WIDTH = 32
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
OWN = {"bpe": letters(), "sentencepiece": ["▁", *(chr(code) for code in range(33, 127)), "\n", "☺", *BYTES]}


@dataclass(frozen=True)
class Model:
    """What a GGUF file has of a model, apart from weights."""

    tokens: tuple[str, ...]
    """Special tokens."""
    name: str = ""
    """`general.name`."""
    architecture: str = "llama"
    filename: str = "model"
    kind: str = "bpe"
    start: str = ""
    """First token of every text."""
    end: str = ""
    """The end token; llama.cpp finds some by their spelling."""
    plain: tuple[str, ...] = ()
    """Special tokens that the file does not mark as control tokens."""

    @property
    def vocabulary(self):
        return ("<unk>", *self.tokens, *OWN[self.kind])

    def sequence(self, text):
        """Ids of a published sequence, in which special tokens are spelled; `▁` is a blank of SentencePiece."""
        ids = []
        for piece in re.split("(" + "|".join(map(re.escape, sorted(self.tokens, key=len, reverse=True))) + ")", text):
            if piece in self.tokens:
                ids.append(self.vocabulary.index(piece))
            else:
                words = piece if self.kind != "bpe" else (letters()[byte] for byte in piece.encode())
                ids += [self.vocabulary.index(word) for word in words]
        return ids


def write(path, model, **texts):
    """Writes a model of one layer with dg-lsp's own writer; `texts` are further metadata, with `__` for a dot."""
    vocabulary = model.vocabulary
    arch, size = model.architecture, len(vocabulary)
    special = {token: USER_DEFINED if token in model.plain else CONTROL for token in model.tokens}
    special |= dict.fromkeys(BYTES, BYTE)
    values = {
        "general.architecture": gguf.text(arch),
        "general.name": gguf.text(model.name),
        **{
            f"{arch}.{key}": gguf.uint32(value)
            for key, value in (
                *(("context_length", 4096), ("embedding_length", WIDTH), ("block_count", 1), ("vocab_size", size)),
                *(("feed_forward_length", WIDTH), ("attention.head_count", 2), ("attention.head_count_kv", 2)),
            )
        },
        f"{arch}.attention.layer_norm_rms_epsilon": gguf.float32(1e-6),
        "tokenizer.ggml.model": gguf.text("gpt2" if model.kind == "bpe" else "llama"),
        "tokenizer.ggml.pre": gguf.text("default"),
        "tokenizer.ggml.tokens": gguf.texts(vocabulary),
        "tokenizer.ggml.scores": gguf.float32s([0.0] * size),
        "tokenizer.ggml.token_type": gguf.int32s([UNKNOWN, *(special.get(token, NORMAL) for token in vocabulary[1:])]),
        "tokenizer.ggml.merges": gguf.texts([]),
        "tokenizer.ggml.bos_token_id": gguf.uint32(vocabulary.index(model.start) if model.start else 0),
        "tokenizer.ggml.add_bos_token": gguf.flag(bool(model.start)),
        **({"tokenizer.ggml.eos_token_id": gguf.uint32(vocabulary.index(model.end))} if model.end else {}),
        **{key.replace("__", "."): gguf.text(value) for key, value in texts.items()},
    }
    square = np.zeros((WIDTH, WIDTH), np.float32)
    tensors = {"token_embd": np.zeros((size, WIDTH), np.float32), "output_norm": square[0]}
    tensors |= {f"blk.0.{name}_norm": square[0] for name in ("attn", "ffn")}
    tensors |= {f"blk.0.{name}": square for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    tensors |= {f"blk.0.{name}": square for name in ("ffn_gate", "ffn_up", "ffn_down")}
    with path.open("wb") as file:
        gguf.write_gguf(file, values, [gguf.vector(f"{name}.weight", data) for name, data in tensors.items()])
    return path
