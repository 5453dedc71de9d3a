"""Every failure of llama.cpp has its error."""

from pathlib import Path

import pytest

from dg_lsp.backends.llamacpp.library import context_error, load_error
from dg_lsp.backends.threads import set_wait_policy
from dg_lsp.errors import ModelError, ModelMemoryError, ModelUnsupportedError

LOGGED = {
    "error loading model: unknown model architecture: 'nonsense'": ModelUnsupportedError,
    "error loading model vocabulary: unknown pre-tokenizer type: 'mine'": ModelUnsupportedError,
    "error loading model vocabulary: unknown tokenizer: 'mine'": ModelUnsupportedError,
    "CLIP cannot be used as main model, use it with --mmproj instead": ModelUnsupportedError,
    "llama_model_load: error loading model: unable to allocate CUDA0 buffer": ModelMemoryError,
    "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 4294967296": ModelMemoryError,
    "allocating 9 MiB on device 0: cudaMalloc failed: out of memory": ModelMemoryError,
    "gguf_init_from_file_impl: encountered bad_alloc error while reading value for key 'x'": ModelMemoryError,
    "tensor 'x' data is not within the file bounds, model is corrupted or incomplete": ModelError,
    "something new": ModelError,
}
"""What llama-cpp-python 0.3.36 logs."""


@pytest.mark.parametrize(("line", "kind"), LOGGED.items(), ids=lambda value: str(value)[:40])
def test_log_of_a_failed_load_is_mapped(line, kind):
    error = load_error(Path("m.gguf"), ["llama_model_load: noise", line])
    assert type(error) is kind
    assert str(error).startswith("m.gguf ") and "\n" not in str(error)


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([], ModelMemoryError),
        (["llama_init_from_model: failed to allocate compute pp buffers"], ModelMemoryError),
        (["failed to initialize the context: quantized V cache was requested"], ModelUnsupportedError),
    ],
    ids=["nothing logged", "no memory", "impossible context"],
)
def test_log_of_a_failed_context_is_mapped(lines, kind):
    assert type(context_error(lines)) is kind


@pytest.mark.parametrize("own", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}, {}], ids=str)
def test_wait_policy_of_the_user_is_kept(own):
    environment = dict(own)
    set_wait_policy(environment)
    assert environment == (own or {"OMP_WAIT_POLICY": "passive"})
