"""Shared by the tests of the training: a toy corpus, a small tokenizer and network, and a sample of real code."""

import importlib.util
import json
import lzma
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

SAMPLE = Path(__file__).with_name("sample")
pytest_plugins = ["conftest"]  # the settings of dg-lsp's own tests
NAMES = ("total", "count", "value", "index", "name", "line", "items", "node", "left", "right", "buffer", "state")

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


def toy_source(seed: int, num_lines: int) -> str:
    """A file of functions with blank lines, comments and nested blocks."""
    rng, lines = random.Random(seed), []
    while len(lines) < num_lines:
        a, b, c = rng.sample(NAMES, 3)
        lines += [f"def {a}_{b}({c}, {b}={rng.randrange(9)}):", f'    """Return the {a}."""']
        for _ in range(rng.randrange(1, 5)):
            d = rng.choice(NAMES)
            lines += [f"    for {d} in {c}.{b}:", f"        {a} = {a} + {d}[{rng.randrange(99)}]  # {b}"]
            if rng.random() < 0.4:
                lines.append("")
        lines += [f"    return {a}", "", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def corpus_files(texts):
    """Python files of one package."""
    from dg_training.store import CorpusFile

    return [CorpusFile("toy", f"toy/{number}.py", text) for number, text in enumerate(texts)]


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small matrix products are faster on one core."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sample_files():
    """2 MB of real code from the corpus; sample/licences.json holds the licences of its packages."""
    from dg_training.store import CorpusFile

    with lzma.open(SAMPLE / "sample.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [CorpusFile(**json.loads(line)) for line in lines]


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """Texts, their vocabulary, a `root` with both splits, the shape of a network, and batches."""
    from tiny_causal import train_tokenizer, vocabulary_of

    from dg_training.network import NetworkConfig
    from dg_training.rows import RowConfig, RowSource
    from dg_training.store import write_texts
    from dg_training.tokenizer import SPECIAL_TOKENS

    texts = [toy_source(seed, 20 + 3 * seed) for seed in range(60)]
    tokenizer = train_tokenizer(texts, 512, SPECIAL_TOKENS)
    root = tmp_path_factory.mktemp("training")
    files = corpus_files(texts)
    write_texts(root / "train.jsonl.xz", files[:50])
    write_texts(root / "val.jsonl.xz", files[50:])
    rows = RowConfig(2, 256, 128, max_middle=32, canvas_lengths=(8, 16), canvas_shares=(0.5, 0.5))
    return SimpleNamespace(
        texts=texts,
        tokenizer=tokenizer,
        rows=RowSource(root, tokenizer, rows),
        vocabulary=vocabulary_of(tokenizer, len(SPECIAL_TOKENS)),
        root=root,
        network=NetworkConfig(
            width=32,
            layers=2,
            heads=2,
            kv_heads=1,
            hidden=64,
            head_width=16,
            num_tokens=tokenizer.get_vocab_size(),
            rope_theta=10_000.0,
            norm_eps=1e-6,
            architecture="qwen3",
            is_tied=True,
        ),
    )
