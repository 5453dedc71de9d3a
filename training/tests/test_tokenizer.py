import hashlib
import json
from pathlib import Path

import pytest

import dg_lsp
from dg_lsp import gguf
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.errors import InputFileError
from dg_lsp.settings import ModelSettings
from dg_training.tokenizer import NUM_TOKENS, PRE_TOKENIZER, SPECIAL_TOKENS, load_tokenizer, tokenizer_from_gguf

BUNDLED = Path(dg_lsp.__file__).parent / "models" / "dg-mini.gguf"
ODD_TEXTS = [
    "x = 'naïve café 東京 🎉'\r\n\t\tif a:\u00a0\n\n\n   \n'LL don't we'Re 12345 ²½\n",
    "",
    " ",
    "\n\n  \n",
    "    return x1234567.real  # ... 1e-9\n\n\n\nclass A: pass",
]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_from_gguf(BUNDLED)


def test_the_bundled_model_has_the_tokenizer_of_the_manifest(tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    digest = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert digest == json.loads(BUNDLED.with_name("dg-mini.manifest.json").read_text())["tokenizer_sha256"]
    assert load_tokenizer(tmp_path / "tokenizer.json").get_vocab_size() == NUM_TOKENS


def test_training_and_llama_cpp_give_text_the_same_ids(tokenizer, sample_files):
    model = LlamaModel.load(BUNDLED, ModelSettings(threads=1, gpu_layers=0))
    for text in [*ODD_TEXTS, *(file.text for file in sample_files[::12])]:
        ids = model.tokenizer.encode(text)
        assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
        assert model.tokenizer.decode(ids).decode() == text
    assert min(model.tokenizer.encode("'<|mask|>' and <|eom|> are text here")) >= len(SPECIAL_TOKENS)
    model.close()


@pytest.mark.parametrize(("pre", "first"), [("gpt-2", SPECIAL_TOKENS[0]), (PRE_TOKENIZER, "<s>")])
def test_the_tokenizer_of_another_model_is_refused(tmp_path, pre, first):
    values = {"pre": gguf.text(pre), "tokens": gguf.texts([first, *SPECIAL_TOKENS[1:]])}
    with (tmp_path / "other.gguf").open("wb") as file:
        gguf.write_gguf(file, {f"tokenizer.ggml.{name}": value for name, value in values.items()}, [])
    with pytest.raises(InputFileError, match="--new-tokenizer"):
        tokenizer_from_gguf(tmp_path / "other.gguf")
