"""Quantizes a GGUF file with llama.cpp, which chooses the number format of each tensor."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.backends.llamacpp.library import library
from dg_lsp.errors import ModelUnsupportedError, UsageError
from dg_lsp.gguf import ProgressCallback, read_header
from dg_lsp.system import NEUTRAL_FOLDER, python_command, python_environment

_BUFFER_BYTES = 1 << 30
"""Buffer for rows; llama.cpp's default is eight times that."""
_TENSOR = re.compile(r"\[ *\d+/ *\d+\] (\S+)")
_FAILED = re.compile(r"failed to quantize: (.*)")


@dataclass(frozen=True, slots=True)
class FileType:
    """A mix of number formats for a file."""

    name: str
    bits: float
    """Upper estimate of the mean bits of a weight: rows that do not fit the format's blocks get a larger format."""

    def size(self, source_bytes: int, source_bits: int) -> int:
        """Upper estimate of the file's bytes, from the bytes and bits per weight of its source."""
        return int(source_bytes * self.bits / source_bits)


_NAMES_BY_BITS = {
    32: "F32",
    16: "F16 BF16",
    9: "Q8_0",
    8.5: "Q6_K",
    7: "Q5_K_M Q5_K_S",
    6.5: "Q5_1 Q4_K_M",
    6: "Q5_0 Q4_K_S",
    5.5: "Q4_1 IQ4_XS Q3_K_L",
    5: "Q4_0 IQ4_NL Q3_K_M Q3_K_S Q2_K",
}
FILE_TYPES = {name: FileType(name, bits) for bits, names in _NAMES_BY_BITS.items() for name in names.split()}
"""The types that need no importance matrix, the largest first."""


def file_type(name: str) -> FileType:
    """The file type of a name in any case; `Q4_K` means `Q4_K_M`. Raises `UsageError`."""
    upper = name.upper()
    if kind := FILE_TYPES.get(upper, FILE_TYPES.get(f"{upper}_M")):
        return kind
    raise UsageError(f"no type {name!r} for weights: use one of {', '.join(FILE_TYPES)}")


def quantize(source: Path, target: Path, kind: FileType, on_progress: ProgressCallback = lambda _: None) -> None:
    """Writes a GGUF with matrices of another type; `on_progress` receives the source's bytes that are done.

    Runs in a child process: Ctrl-C ends it at once, and an abort of llama.cpp ends only the child. Raises `ModelError`.
    """
    sizes = {name: tensor.size for name, tensor in read_header(source).tensors.items()}
    command = python_command(__name__, str(source.absolute()), str(target.absolute()), kind.name)
    reason = ""
    with subprocess.Popen(
        command, env=python_environment(), cwd=NEUTRAL_FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                text = line.decode("utf-8", "replace").strip()
                if match := _FAILED.search(text):  # within the line of a tensor
                    reason = match[1]
                elif match := _TENSOR.match(text):
                    on_progress(sizes.get(match[1], 0))
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise ModelUnsupportedError(
            f"llama.cpp cannot write {source.name} as {kind.name}: {reason or 'it crashed':.200}; pass another --type"
        )


def main(source: str, target: str, name: str) -> int:
    """Runs in the child process: quantizes, with llama.cpp's log on standard error, one line for each tensor."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    api = library().api
    api.llama_log_set(api.llama_log_callback(), None)  # llama.cpp's own log
    params = api.llama_model_quantize_default_params()
    params.ftype = getattr(api, f"LLAMA_FTYPE_{'ALL' if name == 'F32' else 'MOSTLY'}_{name}")
    params.max_buf_size = _BUFFER_BYTES
    return int(api.llama_model_quantize(os.fsencode(source), os.fsencode(target), params))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
