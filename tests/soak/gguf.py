"""Damaged model files of every architecture, against the code with which servers open models.

Each file is a tiny random model with one to three changes of its structure. A process opens one after another and
completes a line with each; a file may end the child that tests it, never the process.
"""

import multiprocessing
import os
import random
import resource
import shutil
import struct
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import tiny_masked
import tiny_vocabulary

from dg_lsp.gguf import ARRAY, MAGIC, SCALARS, STRING, TENSOR_TYPES, Value, read_header
from dg_lsp.models.registry import BUNDLED

ROOT = Path(__file__).parents[2]
MAX_WEIGHTS = 1 << 23
MAX_BYTES = 8 << 30
"""Address space of the process and of its children: a file that makes them allocate more is a failure."""
NUMBERS = (0, 1, 2, 3, 7, 31, 255, 256, 513, 65_535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)
FRACTIONS = (0.0, -1.0, 1e-45, 3e38, float("inf"), float("nan"))
TEXTS = (
    b"", b"\xff\xfe", b"\x00", b"\x1b[2J", b"gpt2", b"llama", b"rwkv", b"bert", b"dream", b"gemma4", b"mamba",
    9999 * b"x", "<0xC3>", "<0x", "<0xZZ>", "é", "😀", "\u2581", "\n", "<|im_end|>", b"\xc3",
)  # fmt: skip
NAMES = {
    "tokenizer.ggml.model": (
        "llama", "gpt2", "gemma4", "t5", "bert", "rwkv", "plamo2", "whitespace", "hybriddna", "none",
    ),
    "tokenizer.ggml.pre": (
        "default", "llama-bpe", "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon", "starcoder", "gpt-2",
        "qwen2", "poro-chat", "bloom", "chatglm-bpe", "viking", "tekken", "smollm", "gpt-4o", "superbpe", "trillion",
        "bailingmoe", "kimi-k2", "hunyuan", "llama4", "seed-coder", "exaone", "exaone-moe", "minicpm5", "gemma4",
        "youtu", "jais-2", "",
    ),
}  # fmt: skip
"""Values that have code of their own in llama.cpp: tokenizers, and regular expressions that split texts."""


@dataclass
class File:
    """A GGUF file in parts that need not fit together."""

    values: list  # key, type, data
    tensors: list  # name, dimensions, type, offset
    body: bytearray
    is_fitted: bool = True
    """Tensors get places without gaps, so that readers look further than at the places."""

    @classmethod
    def read(cls, path):
        header = read_header(path)
        data = path.read_bytes()
        start = min(tensor.start for tensor in header.tensors.values())
        values = [[key, value.kind, value.data] for key, value in header.values.items()]
        tensors = [
            [name, list(reversed(tensor.shape)), tensor.kind.number, tensor.start - start]
            for name, tensor in header.tensors.items()
        ]
        return cls(values, tensors, bytearray(data[start:]))

    def fit(self):
        end = 0
        for tensor in self.tensors:
            size = _size(tensor)
            if size is None:
                return
            tensor[3] = end
            end += size + -size % 32
        self.body += bytes(max(0, end - len(self.body)))

    def packed(self):
        if self.is_fitted:
            self.fit()
        parts = [MAGIC, struct.pack("<IQQ", 3, len(self.tensors), len(self.values))]
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


def _text(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _scalar(kind, number):
    letter = SCALARS[kind]
    if letter in "fd":
        return struct.pack(f"<{letter}", number)
    size = struct.calcsize(letter)
    return (int(number) % (1 << 8 * size)).to_bytes(size, "little")


def _array(kind, items):
    data = b"".join(_text(item) if kind == STRING else _scalar(kind, item) for item in items)
    return struct.pack("<IQ", kind, len(items)) + data


# changes: each changes a part of the file and returns a description


def change_value(file, rng, part=""):
    """Another number, text or array, or elements of an array; of a key with `part`."""
    value = rng.choice([value for value in file.values if part in value[0]])
    key, kind, data = value
    if kind == ARRAY:
        how, value[2] = _changed_array(data, rng)
    elif kind == STRING:
        how = rng.choice((*NAMES.get(key, ()), *TEXTS, data[8:-1]))
        value[2] = _text(how)
        if key in NAMES and rng.random() < 0.5:  # T5's tables of characters
            table = struct.pack("<I", rng.choice((4, 8, 400))) + rng.randbytes(rng.choice((9, 500, 2000)))
            file.values.append(["tokenizer.ggml.precompiled_charsmap", ARRAY, _array(0, table)])
    elif SCALARS[kind] in "fd":
        how = rng.choice(FRACTIONS)
        value[2] = _scalar(kind, how)
    else:
        number = int.from_bytes(data, "little")
        how = rng.choice((*NUMBERS, number + 1, number - 1, 2 * number, number // 2, rng.randrange(300)))
        value[2] = _scalar(kind, how)
    return f"{key} = {str(how)[:20]}"


def _changed_array(data, rng):
    """A description and the data of an array with other elements, or with a wrong count or type."""
    kind, count = struct.unpack_from("<IQ", data)
    how = rng.choice(("empty", "count", "type", "one value", "some", "some", "some"))
    if how == "empty":
        return how, _array(kind, ())
    if how == "count":
        return how, struct.pack("<IQ", kind, rng.choice((count + 1, *NUMBERS))) + data[12:]
    if how == "type":
        return how, struct.pack("<I", rng.choice((*SCALARS, STRING, ARRAY))) + data[4:]
    items = Value(ARRAY, data).read()
    is_fraction = kind != STRING and SCALARS[kind] in "fd"
    choices = TEXTS if kind == STRING else FRACTIONS if is_fraction else (*range(-1, 8), *NUMBERS)
    if how == "one value":
        return how, _array(kind, [rng.choice(choices)] * count)
    chosen = rng.choice((rng.sample(range(count), min(count, rng.choice((1, 3, 40)))), range(count)[5:261]))
    for number in chosen:
        shorter = [items[number][:-1], rng.randbytes(3), str(number)] if kind == STRING else []
        items[number] = rng.choice((*choices, *shorter))
    return f"{len(chosen)} elements", _array(kind, items)


def change_entry(file, rng):
    """A value that is missing, there twice, or of another type."""
    number = rng.randrange(len(file.values))
    how = rng.choice(("missing", "missing", "missing", "twice", "type"))
    key = file.values[number][0]
    if how == "missing":
        del file.values[number]
    elif how == "twice":
        file.values.append([*file.values[number]])
    else:
        file.values[number][1] = rng.choice((*SCALARS, STRING, ARRAY, 13, 1 << 31))
    return f"{key} {how}"


def change_tensor(file, rng):
    """A tensor that is missing, there twice, or has another name, shape, format or place."""
    tensor, partner = rng.choices(file.tensors, k=2)
    name, shape, _, place = tensor
    at = rng.randrange(len(shape))
    how = rng.choice(("missing", "twice", "name", "exchanged", "size", "shape", "shape", "format", "format", "place"))
    if how == "missing":
        file.tensors.remove(tensor)
    elif how == "twice":
        file.tensors.append([*tensor])
    elif how == "name":
        tensor[0] = rng.choice((*TEXTS, "blk.9999.attn_q.weight", f"{name}x"))
    elif how == "exchanged":
        tensor[0], partner[0] = partner[0], name
    elif how == "size":
        shape[at] = rng.choice((*NUMBERS, shape[at] + 32, shape[at] // 2))
    elif how == "shape":
        tensor[1] = rng.choice((shape[::-1], shape + [1] * rng.randint(1, 4), shape[:at] + shape[at + 1 :]))
    elif how == "format":
        tensor[2] = rng.choice((*TENSOR_TYPES, 4, 5, 36, 99, 1 << 31))
    else:
        file.is_fitted = False
        tensor[3] = rng.choice((*NUMBERS, place + 32, max(0, place - 32), len(file.body)))
    return f"{name}: {how} {tensor[1:]}"


def change_weights(file, rng):
    """Damaged weights. tests/test_gguf.py has files that are cut short or whose head is wrong."""
    start = rng.randrange(len(file.body))
    size = rng.choice((4, 64, 4096))
    pattern = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff", b"\1\xa7"))
    file.body[start : start + size] = (pattern * size)[: len(file.body[start : start + size])]
    return f"{size} bytes of weights at {start}"


change_vocabulary = partial(change_value, part="tokenizer.")
CHANGES = {change_value: 38, change_vocabulary: 10, change_entry: 8, change_tensor: 16, change_weights: 4}
"""By how often."""


def damaged(file, rng):
    """Changes the file; returns a description."""
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        with suppress(IndexError, ValueError, OverflowError, struct.error):  # nothing of that kind is left
            done.append(rng.choices(list(CHANGES), CHANGES.values())[0](file, rng))
    return "; ".join(done)


def write_models(folder):
    """One small file of each architecture and of each kind of vocabulary."""
    sys.path.append(str(ROOT / "benchmarks"))
    from dg_benchmarks.random_gguf import write_random
    from dg_benchmarks.shape import TOY

    models = [shutil.copy(BUNDLED[0].path, folder)]
    for architecture in (*tiny_masked.ARCHITECTURES, "qwen2", "qwen3moe", "llama"):
        path = folder / f"{architecture}.gguf"
        models.append(tiny_masked.write(path, tiny_masked.make(architecture), name=f"{architecture} coder"))
    models.append(write_random(TOY, "F16", folder / "gemma4.gguf"))
    sentencepiece = tiny_vocabulary.Model(("<s>", "</s>"), kind="sentencepiece", start="<s>", end="</s>")
    models.append(tiny_vocabulary.write(folder / "sentencepiece.gguf", sentencepiece))
    return [Path(model) for model in models]


# the process


def start_process(folder):
    """A process that opens files as servers do."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=prepare_process, initargs=(str(folder / "data"),))


def prepare_process(data_folder):
    os.environ["DG_LSP_DATA_DIR"] = data_folder
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries report about each file


def open_file(path):
    """Opens a file and completes a line; returns the peaks of memory of the process and of its children."""
    from dg_lsp.cli.loading import open_engine
    from dg_lsp.context.document import Snapshot
    from dg_lsp.engine.request import FillRequest
    from dg_lsp.errors import DgLspError
    from dg_lsp.settings import ModelSettings, Settings

    settings = Settings(model=ModelSettings(name=str(path), threads=1, gpu_layers=0))
    rng = random.Random(zlib.crc32(path.read_bytes()))
    with suppress(DgLspError), closing(open_engine(settings)) as engine:
        for deadline in (1.0, 2.0):
            before = f"x = '{_characters(rng)}'\ndef total(prices):\n    return "
            request = FillRequest(Snapshot("a.py", f"{before}\n# {_characters(rng)}"), len(before))
            engine.fill(request, deadline=time.monotonic() + deadline)
    return [1024 * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def _characters(rng):
    """Random characters of all of Unicode, lone surrogates too, and runs of one character."""
    text = "".join(map(chr, rng.choices(range(0x110000), k=200)))
    return text + rng.choice("a1! \t\u00e9\u4e2d\U0001f600") * rng.choice((1, 5000, 100_000))


# the campaign


def campaign(figures, folder, seed):
    """Opens damaged files one after another."""
    models = write_models(folder)
    process = start_process(folder)
    while not figures.has_ended():
        number = figures.counts["messages"]
        rng = random.Random(f"{seed} {number}")
        model = models[number % len(models)]
        file = File.read(model)
        what = f"{seed}, {number}, {model.stem}: {damaged(file, rng)}"
        (folder / "damaged.gguf").write_bytes(file.packed())
        figures.add("messages")
        try:
            figures.sample(max(process.submit(open_file, folder / "damaged.gguf").result()))
        except BrokenProcessPool:
            figures.add("crashes", f"{what}: the process ended")
            process = start_process(folder)
        except Exception as error:  # noqa: BLE001  (what a server does not expect is a figure)
            figures.add("unexpected", f"{what}: {error!r}")
    process.shutdown()
