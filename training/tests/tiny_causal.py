"""Tiny random checkpoints of four architectures as transformers writes them, with a tokenizer of each kind."""

import json
import random

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

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
    "gemma3": lambda **more: Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 7}, head_dim=16, query_pre_attn_scalar=16, sliding_window=24, **more
    ),
}
ARCHITECTURES = tuple(CONFIGS)
START, END = "<|start|>", "<|endoftext|>"
FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


def tokenizer_of(architecture, texts):
    """A tokenizer as the architecture's checkpoints have it: byte level, or SentencePiece's with byte fallback."""
    if architecture != "gemma3":
        tokenizer = Tokenizer(models.BPE())
        (regex,) = PRE_TOKENIZERS["llama-bpe" if architecture == "llama" else "qwen2"]
        steps = [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        specials = [END, START, *(FIM if architecture == "qwen2" else ())]
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")  # for the training only
        alphabet, specials = [], [END, START, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=specials, initial_alphabet=alphabet, show_progress=False, max_token_length=12
    )
    rng = random.Random(5)
    others = ("".join(rng.choices("abcdefgh", k=rng.randrange(3, 9))) for _ in range(3000))  # words of no corpus
    tokenizer.train_from_iterator([*texts, " ".join(others)], trainer)
    if architecture == "gemma3":
        tokenizer.pre_tokenizer = None
        tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("    ", normalized=False)])
    if architecture in ("llama", "gemma3"):
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
    content = json.loads(tokenizer.to_str())
    if architecture == "gemma3":
        plain = {"<unk>", *(f"<0x{byte:02X}>" for byte in range(256))}  # bytes are no added tokens in such files
        content["added_tokens"] = [
            entry for entry in content["added_tokens"] if entry["content"] not in plain - {"<unk>"}
        ]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    card = f"---\nlicense: {licence}\n---\n# Tiny\n" if licence else "# Tiny\n"
    (folder / "README.md").write_text(card)
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))
