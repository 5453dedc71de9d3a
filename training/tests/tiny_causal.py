"""Tiny random causal models of three architectures: in transformers, and as a GGUF file with a tokenizer."""

import json
import random

import torch
from gguf import MODEL_ARCH, get_tensor_name_map
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from dg_lsp import gguf
from dg_training.network import NetworkConfig
from dg_training.pretrained import ROPE_FACTORS, permuted, rotated_heads
from dg_training.tokenizer import PRE_TOKENIZERS, Kind, Vocabulary

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64, "rope_theta": 500_000.0}
CONFIGS = {
    "llama": lambda **ids: LlamaConfig(**SIZES, tie_word_embeddings=False, rope_parameters=LLAMA3, **ids),
    "qwen2": lambda **ids: Qwen2Config(**SIZES, tie_word_embeddings=True, **ids),
    "qwen3": lambda **ids: Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True, **ids),
}
ARCHITECTURES = tuple(CONFIGS)
START, END = "<|start|>", "<|endoftext|>"
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
    """Writes a GGUF file; returns the model and its tokenizer."""
    rng = random.Random(5)
    words_of_no_corpus = ("".join(rng.choices("abcdefgh", k=rng.randrange(3, 9))) for _ in range(3000))
    special = [END, START, *(FIM if architecture == "qwen2" else ())]
    pre = "llama-bpe" if architecture == "llama" else "qwen2"
    tokenizer = train_tokenizer([*texts, " ".join(words_of_no_corpus)], 900, special, pre)
    torch.manual_seed(3)
    ids = {"eos_token_id": 0, "bos_token_id": 1, "pad_token_id": None}
    hf_config = CONFIGS[architecture](vocab_size=tokenizer.get_vocab_size(), **ids)
    model = AutoModelForCausalLM.from_config(hf_config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))  # norms that are not ones, logits that are not flat
    start_id = 1 if architecture == "llama" else None
    config = _network_config(model.config, architecture)
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
        gguf.write_gguf(file, values, list(_tensors(model, config)))
    return model, tokenizer


def vocabulary_of(tokenizer, num_special, pre="qwen2", start_id=None):
    """The vocabulary of a tokenizer whose first tokens are special."""
    ids = tokenizer.get_vocab()
    kinds = [Kind.CONTROL] * num_special + [Kind.NORMAL] * (len(ids) - num_special)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return Vocabulary(tuple(sorted(ids, key=ids.get)), tuple(kinds), tuple(map(tuple, merges)), pre, start_id, 0)


def _network_config(c, architecture):
    return NetworkConfig(
        width=c.hidden_size,
        layers=c.num_hidden_layers,
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        hidden=c.intermediate_size,
        head_width=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        num_tokens=c.vocab_size,
        rope_theta=c.rope_parameters["rope_theta"],
        norm_eps=c.rms_norm_eps,
        architecture=architecture,
        is_tied=c.tie_word_embeddings,
    )


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


def _tensors(model, config):
    names = get_tensor_name_map(MODEL_ARCH[config.architecture.upper()], config.layers)
    for hf_name, weight in model.state_dict().items():
        if hf_name != "lm_head.weight" or not config.is_tied:
            name = names.get_name(hf_name, (".weight", ".bias"))
            heads = rotated_heads(name, config)
            yield gguf.vector(name, permuted(weight.numpy(), heads, to_neox=False) if heads else weight.numpy())
    if config.architecture == "llama":
        plain = config.rope_theta ** -(torch.arange(0, config.head_width, 2).float() / config.head_width)
        yield gguf.vector(ROPE_FACTORS, (plain / model.model.rotary_emb.inv_freq).numpy())
