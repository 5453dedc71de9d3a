"""Tiny random causal models of three architectures, as GGUF files with a tokenizer."""

import json
import random
from dataclasses import replace

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dg_lsp import gguf
from dg_training.export import _tensors
from dg_training.network import DiffusionNetwork, NetworkConfig
from dg_training.tokenizer import PRE_TOKENIZERS, Kind, Vocabulary

QWEN2 = NetworkConfig(
    width=64,
    layers=2,
    heads=4,
    kv_heads=2,
    hidden=96,
    head_width=16,
    num_tokens=900,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    architecture="qwen2",
    is_tied=True,
)
LLAMA3_FACTORS = (1.0, 1.0, 1.5, 3.0, 8.0, 8.0, 8.0, 8.0)
CONFIGS = {
    "llama": replace(QWEN2, architecture="llama", is_tied=False, rope_theta=500_000.0, rope_factors=LLAMA3_FACTORS),
    "qwen2": QWEN2,
    "qwen3": replace(QWEN2, architecture="qwen3", head_width=32),
}
FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


def train_tokenizer(texts, num_tokens, special_tokens, pre="qwen2"):
    """A byte-level tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    (regex,) = PRE_TOKENIZERS[pre]
    steps = [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=12,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write(path, architecture, texts, licence="apache-2.0"):
    """Writes a GGUF file; returns the tokenizer."""
    rng = random.Random(5)
    words_of_no_corpus = ("".join(rng.choices("abcdefgh", k=rng.randrange(3, 9))) for _ in range(3000))
    special = ["<|endoftext|>", "<|start|>", *(FIM if architecture == "qwen2" else ())]
    pre = "llama-bpe" if architecture == "llama" else "qwen2"
    tokenizer = train_tokenizer([*texts, " ".join(words_of_no_corpus)], 900, special, pre)
    config = replace(CONFIGS[architecture], num_tokens=tokenizer.get_vocab_size())
    network = DiffusionNetwork(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            # norms that are not ones, logits that are not flat
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator) + ("norm" in name))
    start_id = 1 if architecture == "llama" else None
    values = {
        "general.architecture": gguf.text(architecture),
        "general.name": gguf.text("Tiny"),
        **shape_values(config, 512),
        **vocabulary_of(tokenizer, len(special), pre, start_id).values(),
        "tokenizer.ggml.bos_token_id": gguf.uint32(1),
        "tokenizer.ggml.eos_token_id": gguf.uint32(0),
    }
    if licence:
        values["general.license"] = gguf.text(licence)
    with path.open("wb") as file:
        gguf.write_gguf(file, values, list(_tensors(network, "F32")))
    return tokenizer


def vocabulary_of(tokenizer, num_special, pre="qwen2", start_id=None):
    """The vocabulary of a tokenizer whose first tokens are special."""
    ids = tokenizer.get_vocab()
    kinds = [Kind.CONTROL] * num_special + [Kind.NORMAL] * (len(ids) - num_special)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return Vocabulary(tuple(sorted(ids, key=ids.get)), tuple(kinds), tuple(map(tuple, merges)), pre, start_id, 0)


def shape_values(config, context_length):
    """The metadata of a network's shape."""
    numbers = {
        "context_length": context_length,
        "embedding_length": config.width,
        "block_count": config.layers,
        "feed_forward_length": config.hidden,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_width,
        "attention.value_length": config.head_width,
    }
    values = {name: gguf.uint32(number) for name, number in numbers.items()}
    values["attention.layer_norm_rms_epsilon"] = gguf.float32(config.norm_eps)
    values["rope.freq_base"] = gguf.float32(config.rope_theta)
    return {f"{config.architecture}.{name}": value for name, value in values.items()}
