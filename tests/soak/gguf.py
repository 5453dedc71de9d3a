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
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

import tiny_masked
import tiny_vocabulary

from dg_lsp.gguf import ARRAY, SCALARS, STRING, TENSOR_TYPES, Value, copied, read_header, write_gguf
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
    """The contents of a GGUF file, whose parts need not fit together."""

    values: dict  # `Value` by key
    tensors: list

    @classmethod
    def read(cls, path):
        header = read_header(path)
        return cls(dict(header.values), [copied(tensor) for tensor in header.tensors.values()])

    def write(self, path):
        with path.open("wb") as file:
            write_gguf(file, self.values, self.tensors)


def _filled(tensor, **changes):
    """The tensor with another shape or format, and as many bytes as it needs then; ValueError where none fit."""
    changed = replace(tensor, **changes)
    size = changed.size
    if prod(changed.shape) > MAX_WEIGHTS:
        raise ValueError(changed.shape)
    return replace(changed, blocks=lambda: ((b"".join(tensor.blocks()) + bytes(size))[:size],))


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
    key = rng.choice([key for key in file.values if part in key])
    value = file.values[key]
    if value.kind == ARRAY:
        how, data = _changed_array(value.data, rng)
    elif value.kind == STRING:
        how = rng.choice((*NAMES.get(key, ()), *TEXTS, value.data[8:-1]))
        data = _text(how)
        if key in NAMES and rng.random() < 0.5:  # T5's tables of characters
            table = struct.pack("<I", rng.choice((4, 8, 400))) + rng.randbytes(rng.choice((9, 500, 2000)))
            file.values["tokenizer.ggml.precompiled_charsmap"] = Value(ARRAY, _array(0, table))
    else:
        number = value.read()
        close = () if SCALARS[value.kind] in "fd" else (number + 1, number - 1, 2 * number, number // 2)
        how = rng.choice((*close, rng.randrange(300), *(NUMBERS if close else FRACTIONS)))
        data = _scalar(value.kind, how)
    file.values[key] = Value(value.kind, data)
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
    """A value that is missing or of another type."""
    key = rng.choice([*file.values])
    if rng.random() < 0.6:
        del file.values[key]
        return f"{key} missing"
    file.values[key] = replace(file.values[key], kind=rng.choice((*SCALARS, STRING, ARRAY, 13, 1 << 31)))
    return f"{key} of another type"


def change_tensor(file, rng):
    """A tensor that is missing, or has another name, shape, format or weights."""
    at, other = (rng.randrange(len(file.tensors)) for _ in range(2))
    tensor = file.tensors[at]
    shape = tensor.shape
    axis = rng.randrange(len(shape))
    size = rng.choice((*NUMBERS, shape[axis] + 32, shape[axis] // 2))
    shapes = (shape[::-1], (1,) * rng.randint(1, 4) + shape, shape[:axis] + shape[axis + 1 :])
    how = rng.choice(("missing", "name", "exchanged", "size", "shape", "shape", "format", "format", "weights"))
    if how == "missing":
        del file.tensors[at]
    elif how == "name":
        file.tensors[at] = replace(tensor, name=rng.choice(("", "\x00", "blk.9999.attn_q.weight", f"{tensor.name}x")))
    elif how == "exchanged":
        file.tensors[at] = replace(tensor, name=file.tensors[other].name)
        file.tensors[other] = replace(file.tensors[other], name=tensor.name)
    elif how == "size":
        file.tensors[at] = _filled(tensor, shape=(*shape[:axis], size, *shape[axis + 1 :]))
    elif how == "shape":
        file.tensors[at] = _filled(tensor, shape=rng.choice(shapes))
    elif how == "format":
        file.tensors[at] = _filled(tensor, kind=rng.choice([*TENSOR_TYPES.values()]))
    else:
        pattern = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff", b"\1\xa7"))
        file.tensors[at] = replace(tensor, blocks=lambda: ((pattern * tensor.size)[: tensor.size],))
    return f"{tensor.name}: {how}"


change_vocabulary = partial(change_value, part="tokenizer.")
CHANGES = {change_value: 38, change_vocabulary: 10, change_entry: 8, change_tensor: 20}
"""By how often."""


def damaged(file, rng):
    """Changes the file; returns a description. tests/test_gguf.py has files whose head or places are wrong."""
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
        file.write(folder / "damaged.gguf")
        figures.add("messages")
        try:
            figures.sample(max(process.submit(open_file, folder / "damaged.gguf").result()))
        except BrokenProcessPool:
            figures.add("crashes", f"{what}: the process ended")
            process = start_process(folder)
        except Exception as error:  # noqa: BLE001  (what a server does not expect is a figure)
            figures.add("unexpected", f"{what}: {error!r}")
    process.shutdown()
