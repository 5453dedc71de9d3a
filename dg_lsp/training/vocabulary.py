"""The ids every file of this room agrees on: 8,192 byte-level BPE tokens, the first sixteen of them special.

Knows no text and no tokenizer. Ids 9 to 15 have no meaning yet: later recipes can use them without a new vocabulary.
"""

NUM_TOKENS = 8192

END_OF_TEXT, MASK, PREFIX, SUFFIX, MIDDLE, END_OF_MIDDLE, FILE, EXPAND, DELETE = range(9)

SPECIALS = (
    "<|endoftext|>",
    "<|mask|>",
    "<|prefix|>",
    "<|suffix|>",
    "<|middle|>",
    "<|eom|>",
    "<|file|>",
    "<|expand|>",
    "<|delete|>",
    *(f"<|reserved_{i}|>" for i in range(9, 16)),
)
NUM_SPECIALS = len(SPECIALS)

# llama.cpp's LLAMA_VOCAB_PRE_TYPE_QWEN2, so that its tokenization equals ours (src/llama-vocab.cpp).
PRE_TOKENIZER = "qwen2"
PRE_TOKENIZER_REGEX = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# What a fill may never contain: every special token except the one that ends it.
BANNED_IDS = tuple(i for i in range(NUM_SPECIALS) if i != END_OF_MIDDLE)
