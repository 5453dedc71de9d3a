"""Damaged model files of every architecture, against the code with which servers open models.

Each file is a tiny random model with one to three changes of its structure. `Server` is a process that opens one after
another and completes a line with each; a file may end the child that tests it, never the server.
"""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import tiny_masked
import tiny_vocabulary

from dg_lsp.gguf import ARRAY, MAGIC, SCALARS, STRING, TENSOR_TYPES, read_header
from dg_lsp.models.registry import BUNDLED
from soak.figures import NUM_EXAMPLES, figures_of

ROOT = Path(__file__).parents[2]
MAX_WEIGHTS = 1 << 23
MAX_BYTES = 8 << 30
"""Address space of the server and of its children: a file that makes them allocate more is a failure."""
NUMBERS = (0, 1, 2, 3, 7, 31, 255, 256, 513, 65_535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)
TEXTS = (
    b"",
    b"\xff\xfe",
    b"\x00",
    b"\x1b[2J",
    b"gpt2",
    b"llama",
    b"rwkv",
    b"bert",
    b"dream",
    b"gemma4",
    b"mamba",
    9999 * b"x",
)
TOKENIZERS = ("llama", "gpt2", "gemma4", "t5", "bert", "rwkv", "plamo2", "whitespace", "hybriddna", "none")
SPLITTERS = (
    "default", "llama-bpe", "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon", "starcoder", "gpt-2", "qwen2",
    "poro-chat", "bloom", "chatglm-bpe", "viking", "tekken", "smollm", "gpt-4o", "superbpe", "trillion", "bailingmoe",
    "kimi-k2", "hunyuan", "llama4", "seed-coder", "exaone", "exaone-moe", "minicpm5", "gemma4", "youtu", "jais-2", "",
)  # fmt: skip
"""Values of `tokenizer.ggml.model`, and of `tokenizer.ggml.pre`: regular expressions that split texts."""
SPELLINGS = (*(text.encode() for text in ("<0xC3>", "<0x", "<0xZZ>", "é", "😀", "\u2581", "\n", "<|im_end|>")), b"\xc3")
FRACTIONS = (0.0, -1.0, 1e-45, 3e38, float("inf"), float("nan"))


@dataclass
class File:
    """A GGUF file in parts that need not fit together."""

    values: list  # key, type, data
    tensors: list  # name, dimensions, type, offset
    body: bytearray
    version: int = 3
    more_values: int = 0
    more_tensors: int = 0
    is_fitted: bool = True
    """Tensors get places without gaps, so that readers look further than at the places."""

    @classmethod
    def read(cls, path):
        header, data = read_header(path), path.read_bytes()
        start = min(tensor.start for tensor in header.tensors.values())
        values = [[key.encode(), value.kind, value.data] for key, value in header.values.items()]
        tensors = [
            [name.encode(), list(reversed(tensor.shape)), tensor.kind.number, tensor.start - start]
            for name, tensor in header.tensors.items()
        ]
        return cls(values, tensors, bytearray(data[start:]))

    def fit(self):
        at = 0
        for tensor in self.tensors:
            size = _size(tensor)
            if size is None:
                return
            tensor[3], at = at, at + size + -size % 32
        self.body += bytes(max(0, at - len(self.body)))

    def packed(self):
        if self.is_fitted:
            self.fit()
        counts = (len(self.tensors) + self.more_tensors, len(self.values) + self.more_values)
        parts = [MAGIC, struct.pack("<IQQ", self.version, *(max(0, count) for count in counts))]
        for key, kind, data in self.values:
            parts.append(_text(key) + struct.pack("<I", kind) + data)
        for name, dimensions, kind, offset in self.tensors:
            sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
            parts.append(_text(name) + sizes + struct.pack("<IQ", kind, offset))
        head = b"".join(parts)
        return head + bytes(-len(head) % 32) + self.body


def _size(tensor):
    """Bytes of a tensor; None if the format does not exist or the size is absurd."""
    _, dimensions, number, _ = tensor
    kind = TENSOR_TYPES.get(number)
    if kind is None or not dimensions or prod(dimensions) > MAX_WEIGHTS:
        return None
    with suppress(ValueError):
        return kind.num_bytes(tuple(reversed(dimensions)))
    return None


def _text(data):
    return struct.pack("<Q", len(data)) + data


# one function for each kind of change; returns what it did


def change_number(file, rng):
    value = rng.choice([one for one in file.values if one[1] in SCALARS])
    letter = SCALARS[value[1]]
    if letter in "fd":
        number = rng.choice(FRACTIONS)
        value[2] = struct.pack(f"<{letter}", min(number, 3e38) if letter == "f" and number != float("inf") else number)
    else:
        old, size = int.from_bytes(value[2], "little"), len(value[2])
        number = rng.choice((*NUMBERS, old + 1, old - 1, 2 * old, old // 2)) % (1 << 8 * size)
        value[2] = number.to_bytes(size, "little")
    return f"{value[0].decode()} = {number}"


def change_text(file, rng):
    value = rng.choice([one for one in file.values if one[1] == STRING])
    new = rng.choice((*TEXTS, value[2][8:-1]))
    value[2] = _text(new)
    return f"{value[0].decode()} = {new[:20]}"


def change_type(file, rng):
    value = rng.choice(file.values)
    value[1] = rng.choice((*SCALARS, STRING, ARRAY, 13, 1 << 31))
    return f"{value[0].decode()} has type {value[1]}"


def remove_value(file, rng):
    return f"no {file.values.pop(rng.randrange(len(file.values)))[0].decode()}"


def repeat_value(file, rng):
    value = list(rng.choice(file.values))
    file.values.append(value)
    return f"{value[0].decode()} twice"


def change_array(file, rng):
    value = rng.choice([one for one in file.values if one[1] == ARRAY])
    kind, length = struct.unpack_from("<IQ", value[2])
    data, how = bytearray(value[2]), rng.choice(("empty", "longer", "type", "bytes", "huge"))
    if how == "empty":
        data = bytearray(struct.pack("<IQ", kind, 0))
    elif how in ("longer", "huge"):
        struct.pack_into("<Q", data, 4, length + 1 if how == "longer" else rng.choice(NUMBERS))
    elif how == "type":
        struct.pack_into("<I", data, 0, rng.choice((*SCALARS, STRING, ARRAY)))
    else:
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(12, len(data)) if len(data) > 12 else 0] = rng.randrange(256)
    value[2] = bytes(data)
    return f"{value[0].decode()}: {how}"


def change_shape(file, rng):
    tensor = rng.choice(file.tensors)
    how, at = rng.choice(("other", "swapped", "more", "fewer")), rng.randrange(len(tensor[1]))
    if how == "other":
        tensor[1][at] = rng.choice((*NUMBERS, tensor[1][at] + 32, tensor[1][at] // 2))
    elif how == "swapped":
        tensor[1].reverse()
    elif how == "more":
        tensor[1] += [1] * rng.randint(1, 4)
    else:
        del tensor[1][at]
    return f"{tensor[0].decode()} has shape {tensor[1]}"


def change_format(file, rng):
    tensor = rng.choice(file.tensors)
    tensor[2] = rng.choice((*TENSOR_TYPES, 4, 5, 36, 99, 1 << 31))
    return f"{tensor[0].decode()} has format {tensor[2]}"


def change_place(file, rng):
    tensor = rng.choice(file.tensors)
    file.is_fitted = False
    tensor[3] = rng.choice((*NUMBERS, tensor[3] + 32, max(0, tensor[3] - 32), len(file.body)))
    return f"{tensor[0].decode()} at {tensor[3]}"


def change_tensors(file, rng):
    at, how = rng.randrange(len(file.tensors)), rng.choice(("removed", "repeated", "renamed", "exchanged"))
    name = file.tensors[at][0]
    if how == "removed":
        del file.tensors[at]
    elif how == "repeated":
        file.tensors.append(list(file.tensors[at]))
    elif how == "renamed":
        file.tensors[at][0] = rng.choice((*TEXTS, b"blk.9999.attn_q.weight", name + b"x"))
    else:
        other = rng.choice(file.tensors)
        file.tensors[at][0], other[0] = other[0], name
    return f"{name.decode()} {how}"


def change_weights(file, rng):
    at, size = rng.randrange(len(file.body)), rng.choice((4, 64, 4096))
    pattern = rng.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff", rng.randbytes(64)))
    file.body[at : at + size] = (pattern * size)[: len(file.body[at : at + size])]
    return f"{size} bytes of weights at {at}"


def change_head(file, rng):
    how = rng.choice(("version", "more_values", "more_tensors"))
    number = rng.choice((1, 2, 4, 255)) if how == "version" else rng.choice((-1, 1, 1000, 1 << 40))
    setattr(file, how, number)
    return f"{how} = {number}"


def cut(file, rng):
    file.is_fitted = False
    del file.body[rng.randrange(len(file.body)) :]
    return f"cut to {len(file.body)} bytes of weights"


def change_vocabulary(file, rng):
    """Changes tokens, their types and scores, merges, special tokens, or the kind of the tokenizer."""
    values = {value[0].decode().removeprefix("tokenizer.ggml."): value for value in file.values}
    kinds = ("tokens", "tokens", "tokens", "token_type", "scores", "merges", "model", "pre", "special")
    how = rng.choice([kind for kind in kinds if kind in (*values, "special")])
    if how == "special":
        name = rng.choice([name for name in values if name.endswith("_token_id")])
        values[name][2] = struct.pack("<I", rng.choice((*range(300), 1 << 31, (1 << 32) - 1)))
        return name
    if how in ("model", "pre"):
        names = TOKENIZERS if how == "model" else SPLITTERS
        values[how][2] = _text(rng.choice(names).encode())
        if rng.random() < 0.5:  # T5's tables of characters
            chars = struct.pack("<I", rng.choice((4, 8, 400))) + rng.randbytes(rng.choice((9, 500, 2000)))
            data = struct.pack("<IQ", 0, len(chars)) + chars
            file.values.append([b"tokenizer.ggml.precompiled_charsmap", ARRAY, data])
        return f"{how} = {values[how][2][8:].decode()}"
    kind, count = struct.unpack_from("<IQ", values[how][2])
    if kind == STRING:
        texts = _texts(values[how][2], count)
        chosen = rng.choice((rng.sample(range(count), min(count, rng.choice((1, 3, 40)))), range(count), range(5, 261)))
        for at in chosen:
            texts[at] = rng.choice((*TEXTS, *SPELLINGS, texts[at][:-1], rng.randbytes(3), str(at).encode()))
        values[how][2] = struct.pack("<IQ", STRING, count) + b"".join(map(_text, texts))
        return f"{len(chosen)} {how}"
    numbers = range(-1, 8) if how == "token_type" else FRACTIONS
    new = rng.choices(numbers, k=count) if rng.random() < 0.5 else [rng.choice(numbers)] * count
    values[how][2] = values[how][2][:12] + struct.pack(f"<{count}{SCALARS[kind]}", *new)
    return f"{how} = {new[:4]}"


def _texts(data, count):
    texts, at = [], 12
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", data, at)
        texts.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return texts


VOCABULARY = {change_vocabulary: 1}
CHANGES = {  # by how often
    change_number: 20, change_text: 6, change_type: 1, remove_value: 6, repeat_value: 1, change_array: 12,
    change_shape: 6, change_format: 5, change_place: 1, change_tensors: 4, change_weights: 4, change_head: 1, cut: 1,
    change_vocabulary: 10,
}  # fmt: skip


def mutated(file, rng, changes):
    """Changes the file; returns a description."""
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        with suppress(IndexError, ValueError, struct.error):  # nothing of that kind is left
            done.append(rng.choices(list(changes), changes.values())[0](file, rng))
    return "; ".join(done)


def write_models(folder):
    """One small file of each architecture."""
    sys.path.append(str(ROOT / "benchmarks"))
    from dg_benchmarks.random_gguf import write_random
    from dg_benchmarks.shape import TOY

    models = [shutil.copy(BUNDLED[0].path, folder)]
    for architecture in (*tiny_masked.ARCHITECTURES, "qwen2", "qwen3moe", "llama"):
        path = folder / f"{architecture}.gguf"
        models.append(tiny_masked.write(path, tiny_masked.make(architecture), name=f"{architecture} coder"))
    models.append(write_random(TOY, "F16", folder / "gemma4.gguf"))
    return [Path(model) for model in models]


def write_vocabularies(folder):
    """A model with a vocabulary of each kind."""
    sentencepiece = tiny_vocabulary.Model(("<s>", "</s>"), kind="sentencepiece", start="<s>", end="</s>")
    tiny_vocabulary.write(folder / "sentencepiece.gguf", sentencepiece)
    return [Path(shutil.copy(BUNDLED[0].path, folder)), folder / "sentencepiece.gguf"]


# the server


class Server:
    """A process that opens files as servers do."""

    def __init__(self, folder):
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
        environment = {**os.environ, "PYTHONPATH": path, "DG_LSP_DATA_DIR": str(folder / "data")}
        command = [sys.executable, "-P", "-m", "soak.gguf"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def open(self, path):
        """The outcome and peak memory; None if the process ended."""
        try:
            self._process.stdin.write(f"{path}\n".encode())
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            return None
        return json.loads(line) if line else None

    def close(self):
        """Returns the exit code."""
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait()


def serve():
    """The process: reads paths, prints outcomes."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    for line in sys.stdin:
        try:
            outcome = _open(line.rstrip("\n"))
        except Exception as error:  # noqa: BLE001  (what a server does not expect is a figure)
            outcome = f"unexpected {error!r}"
        peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        print(json.dumps({"outcome": outcome, "peaks": peaks}), flush=True)


def _open(path):
    from dg_lsp.cli.loading import open_engine
    from dg_lsp.context.document import Snapshot
    from dg_lsp.engine.request import FillRequest
    from dg_lsp.errors import DgLspError
    from dg_lsp.settings import ModelSettings, Settings

    settings = Settings(model=ModelSettings(name=path, threads=1, gpu_layers=0))
    characters = random.Random(path_digest(path))
    try:
        with closing(open_engine(settings)) as engine:
            for deadline in (1.0, 2.0):
                before = f"x = '{_characters(characters)}'\ndef total(prices):\n    return "
                request = FillRequest(Snapshot("a.py", 0, f"{before}\n# {_characters(characters)}"), len(before))
                engine.fill(request, deadline=time.monotonic() + deadline)
    except DgLspError as error:
        return type(error).__name__
    return "opened"


def path_digest(path):
    """A number that depends on the content of a file."""
    return zlib.crc32(Path(path).read_bytes())


def _characters(rng):
    """Random characters of all of Unicode, lone surrogates too, and runs of one character."""
    text = "".join(map(chr, rng.choices(range(0x110000), k=200)))
    return text + rng.choice("a1! \t\u00e9\u4e2d\U0001f600") * rng.choice((1, 5000, 100_000))


# the campaign


@dataclass
class Figures:
    outcomes: Counter = field(default_factory=Counter)
    peaks: list = field(default_factory=lambda: [0, 0])
    examples: list = field(default_factory=list)
    in_children: list = field(default_factory=list)

    def add(self, found, code, what):
        """`found` is the server's answer, or None with its exit code."""
        outcome = f"crash {code}" if found is None else found["outcome"]
        kind = outcome.split()[0]
        self.outcomes[kind] += 1
        if kind in ("crash", "unexpected"):
            self.examples.append(f"{what}: {outcome}")
        elif kind == "ModelCrashedError":
            self.in_children.append(what)
        if found:
            self.peaks = list(map(max, self.peaks, found["peaks"]))


def run(seconds, seed, most=float("inf"), changes=CHANGES):
    """Opens damaged files for some seconds, or a number of them; returns the figures.

    With `VOCABULARY` for `changes`, only vocabularies are damaged: those of dg-mini and of a SentencePiece model.
    """
    start, figures, number = time.monotonic(), Figures(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = write_models(folder) if changes is CHANGES else write_vocabularies(folder)
        server = Server(folder)
        while number < most and time.monotonic() - start < seconds:
            rng = random.Random(f"{seed} {number}")
            path, original = folder / "damaged.gguf", models[number % len(models)]
            file = File.read(original)
            what = f"{seed}, {number}, {original.stem}: {mutated(file, rng, changes)}"
            path.write_bytes(file.packed())
            found = server.open(path)
            figures.add(found, None if found else server.close(), what)
            if found is None:
                server = Server(folder)
            number += 1
        server.close()
    return figures_of(
        start,
        seed,
        number,
        crashes=figures.outcomes["crash"],
        unexpected=figures.outcomes["unexpected"],
        children_crashed=figures.outcomes["ModelCrashedError"],
        opened=figures.outcomes["opened"],
        outcomes=dict(figures.outcomes),
        peak_mib=round(figures.peaks[0] / 1024, 1),
        peak_mib_of_children=round(figures.peaks[1] / 1024, 1),
        examples_of_children=figures.in_children[:NUM_EXAMPLES],
        examples=figures.examples,
    )


if __name__ == "__main__":
    serve()
