"""Tiny random checkpoints of three architectures as transformers writes them, with their tokenizers."""

import random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from dg_training.tokenizer import PRE_TOKENIZERS

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
    "llama": lambda **more: LlamaConfig(**SIZES, tie_word_embeddings=False, rope_parameters=LLAMA3, **more),
    "qwen2": lambda **more: Qwen2Config(**SIZES, tie_word_embeddings=True, **more),
    "qwen3": lambda **more: Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True, **more),
}
ARCHITECTURES = tuple(CONFIGS)
START, END = "<|start|>", "<|endoftext|>"
FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


def tokenizer_of(architecture, texts):
    """A byte-level tokenizer as the architecture's checkpoints have it."""
    tokenizer = Tokenizer(models.BPE())
    (regex,) = PRE_TOKENIZERS["llama-bpe" if architecture == "llama" else "qwen2"]
    steps = [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[END, START, *(FIM if architecture == "qwen2" else ())],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=12,
    )
    rng = random.Random(5)
    others = ("".join(rng.choices("abcdefgh", k=rng.randrange(3, 9))) for _ in range(3000))  # words of no corpus
    tokenizer.train_from_iterator([*texts, " ".join(others)], trainer)
    if architecture == "llama":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{START} $A", special_tokens=[(START, tokenizer.token_to_id(START))]
        )
    return tokenizer


def write(folder, architecture, texts, licence="apache-2.0"):
    """Writes a checkpoint; returns the model and its tokenizer."""
    tokenizer = tokenizer_of(architecture, texts)
    torch.manual_seed(3)
    ids = {
        "eos_token_id": tokenizer.token_to_id(END),
        "bos_token_id": tokenizer.token_to_id(START),
        "pad_token_id": None,
    }
    model = AutoModelForCausalLM.from_config(
        CONFIGS[architecture](vocab_size=tokenizer.get_vocab_size(), **ids), attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))  # norms that are not ones, logits that are not flat
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    card = f"---\nlicense: {licence}\n---\n# Tiny\n" if licence else "# Tiny\n"
    (folder / "README.md").write_text(card)
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))
