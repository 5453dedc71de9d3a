"""A toy corpus that every test of this room shares: synthetic files, a small tokenizer, a store on disk."""

import dataclasses
import json
import lzma
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from dg_lsp.training.config import NetworkConfig, OptimizerConfig, RowConfig, TrainConfig
from dg_lsp.training.corpus import SourceFile

SAMPLE = Path(__file__).with_name("sample")

WORDS = (
    "total",
    "count",
    "value",
    "index",
    "name",
    "line",
    "items",
    "node",
    "left",
    "right",
    "buffer",
    "state",
    "path",
)


def sample_files() -> list[SourceFile]:
    """2 MB of real code that the corpus kept; whose it is, and under which licence, is in sample/licences.json."""
    with lzma.open(SAMPLE / "sample.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [SourceFile(**json.loads(line)) for line in lines]


def source(rng: random.Random, num_lines: int) -> str:
    """A file of functions with blank lines, comments and nested blocks."""
    lines = []
    while len(lines) < num_lines:
        a, b, c = rng.sample(WORDS, 3)
        lines += [f"def {a}_{b}({c}, {b}={rng.randrange(9)}):", f'    """Return the {a}."""']
        for _ in range(rng.randrange(1, 5)):
            d = rng.choice(WORDS)
            lines += [f"    for {d} in {c}.{b}:", f"        {a} = {a} + {d}[{rng.randrange(99)}]  # {b}"]
            if rng.random() < 0.4:
                lines.append("")
        lines += [f"    return {a}", "", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Toy products are faster on one core, and do not wait for a second one that is busy."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """texts, tokenizer, root (with train, val and tokenizer.json) and a configuration of two tiny layers."""
    pytest.importorskip("tokenizers")
    from dg_lsp.training.store import build_store, write_store
    from dg_lsp.training.tokenizer import train_tokenizer

    rng = random.Random(3)
    texts = [source(rng, rng.randrange(20, 200)) for _ in range(60)]
    tokenizer = train_tokenizer(texts, 512)
    root: Path = tmp_path_factory.mktemp("training")
    tokenizer.save(str(root / "tokenizer.json"))
    write_store(root / "train", build_store(texts[:50], tokenizer))
    write_store(root / "val", build_store(texts[50:], tokenizer))
    config = TrainConfig(
        "tiny",
        NetworkConfig(width=32, layers=2, heads=2, kv_heads=1, hidden=64, head_width=16, num_tokens=512),
        RowConfig(
            rows=2, num_clean=256, num_noisy=128, max_middle=32, canvas_lengths=(8, 16), canvas_shares=(0.5, 0.5)
        ),
        OptimizerConfig(warmup_steps=4),
        workers=0,
    )
    return SimpleNamespace(texts=texts, tokenizer=tokenizer, root=root, config=config, replace=dataclasses.replace)
