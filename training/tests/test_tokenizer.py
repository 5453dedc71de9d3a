"""The tokenizer of a GGUF file, compared with llama.cpp."""

from contextlib import closing

from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.gguf import read_header
from dg_lsp.models.registry import BUNDLED
from dg_lsp.settings import ModelSettings
from dg_training.tokenizer import SPECIAL_TOKENS, read_vocabulary

ODD_TEXTS = [
    "x = 'naïve café 東京 🎉'\r\n\t\tif a:\u00a0\n\n\n   \n'LL don't we'Re 12345 ²½\n",
    "",
    " ",
    "\n\n  \n",
    "    return x1234567.real  # ... 1e-9\n\n\n\nclass A: pass",
]


def test_training_and_llama_cpp_give_text_the_same_ids(sample_files):
    for bundled in BUNDLED:
        tokenizer = read_vocabulary(read_header(bundled.path)).tokenizer()
        with closing(LlamaModel(bundled.path, ModelSettings(threads=1, gpu_layers=0))) as model:
            for text in [*ODD_TEXTS, *(file.text for file in sample_files[::12])]:
                ids = model.tokenizer.encode(text)
                assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
                assert model.tokenizer.decode(ids).decode() == text
            assert min(model.tokenizer.encode("'<|mask|>' and <|eom|> are text here")) >= len(SPECIAL_TOKENS)
