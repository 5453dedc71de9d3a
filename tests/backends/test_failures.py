"""Every foreign failure has its error. A new one in llama.cpp shows here as a missing line."""

import re
from pathlib import Path

import pytest

from dg_lsp.backends.llamacpp import errors
from dg_lsp.backends.llamacpp.library import MAX_LINES, NativeLog, choose_waiting
from dg_lsp.errors import BackendError, ModelBrokenError, ModelError, ModelMemoryError, ModelUnsupportedError

PATH = Path("m.gguf")

# What llama.cpp 0.3.36 logs, from its sources.
LOGGED = {
    "llama_model_load: error loading model: unknown model architecture: 'nonsense'": ModelUnsupportedError,
    "error loading model vocabulary: unknown pre-tokenizer type: 'mine'": ModelUnsupportedError,
    "error loading model vocabulary: unknown tokenizer: 'mine'": ModelUnsupportedError,
    "CLIP cannot be used as main model, use it with --mmproj instead": ModelUnsupportedError,
    "this GGUF file is version 9 but this software only supports up to version 3": ModelUnsupportedError,
    "GGUFv1 is no longer supported, please use a more up-to-date version": ModelUnsupportedError,
    "this GGUF file version 50331648 is extremely large, is there a mismatch between the host and model endianness?": (
        ModelUnsupportedError
    ),
    "llama_model_load: error loading model: unable to allocate CUDA0 buffer": ModelMemoryError,
    "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 4294967296": ModelMemoryError,
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9 MiB on device 0: cudaMalloc failed: out of memory": (
        ModelMemoryError
    ),
    "gguf_init_from_file_impl: encountered bad_alloc error while reading value for key 'x'": ModelMemoryError,
    "tensor 'x' data is not within the file bounds, model is corrupted or incomplete": ModelBrokenError,
    "gguf_init_from_file_impl: failed to read key-value pairs": ModelBrokenError,
    "string length 99 exceeds remaining file size 3 bytes": ModelBrokenError,
    "read error: unexpectedly reached end of file": ModelBrokenError,
    "invalid magic characters: 'PK..', expected 'GGUF'": ModelBrokenError,
    "error loading model hyperparameters: key not found in model: qwen3.block_count": ModelBrokenError,
    "missing tensor 'blk.0.attn_q.weight'": ModelBrokenError,
    "wrong number of tensors; expected 311, got 310": ModelBrokenError,
    "check_tensor_dims: tensor 'token_embd.weight' has wrong shape; expected 64, 268, got 64, 267": ModelBrokenError,
    "LoRA is corrupted or incomplete": ModelBrokenError,
    "tensor 'x' has invalid data": ModelBrokenError,
    "something that nobody has seen yet": ModelBrokenError,
}


@pytest.mark.parametrize(("line", "kind"), LOGGED.items(), ids=lambda value: str(value)[:40])
def test_what_llama_cpp_logs_while_loading(line, kind):
    error = errors.load_error(PATH, ["llama_model_load: noise", line] if "nobody" not in line else [line])
    assert type(error) is kind
    assert "\n" not in str(error)
    assert str(PATH) in str(error)


def test_every_known_text_is_tried_here():
    for text, kind, _ in errors.LOAD_FAILURES:
        matching = [line for line in LOGGED if text in line]
        if not matching:
            assert text in ("different endianness",), text
        assert all(issubclass(LOGGED[line], kind) for line in matching)


def test_nothing_logged_is_mapped_too():
    assert type(errors.load_error(PATH, [])) is ModelBrokenError
    assert type(errors.context_error([])) is ModelMemoryError


def test_every_status_of_decode_is_mapped():
    """The statuses are those that the binding's own comment on `llama_decode` and its source name."""
    assert set(errors.DECODE_STATUS) == {1, 2, -1, -2, -3}
    for status in (*errors.DECODE_STATUS, 77):
        error = errors.decode_error(status)
        assert type(error) is BackendError
        assert re.search("; (use|try|please|see)", str(error))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers",
            ModelMemoryError,
        ),
        ("failed to allocate buffer for kv cache", ModelMemoryError),
        ("failed to initialize the context: quantized V cache was requested", ModelUnsupportedError),
    ],
)
def test_a_context_that_cannot_be_made(line, kind):
    assert type(errors.context_error([line])) is kind


@pytest.mark.parametrize("error", [ImportError("no module"), OSError("libgomp.so.1: cannot open\nshared object")])
def test_a_library_that_cannot_be_loaded(error):
    mapped = errors.library_error(error)
    assert type(mapped) is BackendError
    assert "\n" not in str(mapped)
    assert "reinstall" in str(mapped)


def test_a_file_that_cannot_be_read():
    assert type(errors.file_error(PATH, PermissionError(13, "Permission denied"))) is ModelError


def test_the_log_keeps_the_last_lines_and_the_trouble():
    log = NativeLog()
    for number in range(200):
        log.write(2, f"line {number}\n".encode())
    log.write(1, b"debug\n")
    log.write(5, b".")
    log.write(4, b"bad \xff\n")
    assert len(log.lines) == MAX_LINES
    assert log.lines[-2:] == ("line 199", "bad \ufffd")
    assert log.trouble == ("bad \ufffd",)
    log.forget_trouble()
    assert log.trouble == ()


@pytest.mark.parametrize("own", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}])
def test_the_users_own_waiting_is_kept(own):
    environment = dict(own)
    choose_waiting(environment)
    assert environment == own
    environment = {}
    choose_waiting(environment)
    assert environment
