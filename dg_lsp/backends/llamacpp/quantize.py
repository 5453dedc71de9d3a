"""Quantizes a GGUF file with llama.cpp, which chooses the number format of each tensor."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import dg_lsp
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.errors import ModelUnsupportedError, UsageError
from dg_lsp.gguf import ProgressCallback, read_header
from dg_lsp.system import NEUTRAL_FOLDER, python_command

_BUFFER_BYTES = 1 << 30
"""Buffer for rows; llama.cpp's default is eight times that."""
_TENSOR = re.compile(r"\[ *\d+/ *\d+\] (\S+)")
_FAILED = re.compile(r"failed to quantize: (.*)")


@dataclass(frozen=True, slots=True)
class FileType:
    """A mix of number formats for a file."""

    name: str
    number: int
    """`enum llama_ftype`."""
    bits: float
    """Upper estimate of the mean bits of a weight: rows that do not fit the format's blocks get a larger format."""

    def size(self, source_bytes: int, source_bits: int) -> int:
        """Upper estimate of the file's bytes, from the bytes and bits per weight of its source."""
        return int(source_bytes * self.bits / source_bits)


FILE_TYPES = {
    kind.name: kind
    for kind in (
        FileType("F32", 0, 32),
        FileType("F16", 1, 16),
        FileType("BF16", 32, 16),
        FileType("Q8_0", 7, 9),
        FileType("Q6_K", 18, 8.5),
        FileType("Q5_K_M", 17, 7),
        FileType("Q5_K_S", 16, 7),
        FileType("Q5_1", 9, 6.5),
        FileType("Q5_0", 8, 6),
        FileType("Q4_K_M", 15, 6.5),
        FileType("Q4_K_S", 14, 6),
        FileType("Q4_1", 3, 5.5),
        FileType("Q4_0", 2, 5),
        FileType("IQ4_XS", 30, 5.5),
        FileType("IQ4_NL", 25, 5),
        FileType("Q3_K_L", 13, 5.5),
        FileType("Q3_K_M", 12, 5),
        FileType("Q3_K_S", 11, 5),
        FileType("Q2_K", 10, 5),
    )
}
"""The types that need no importance matrix, the largest first."""


def file_type(name: str) -> FileType:
    """The file type of a name in any case; `Q4_K` means `Q4_K_M`. Raises `UsageError`."""
    upper = name.upper()
    if found := FILE_TYPES.get(upper, FILE_TYPES.get(f"{upper}_M")):
        return found
    raise UsageError(f"no type {name!r} for weights: use one of {', '.join(FILE_TYPES)}")


def quantize(source: Path, target: Path, kind: FileType, on_progress: ProgressCallback = lambda _: None) -> None:
    """Writes a GGUF with matrices of another type; `on_progress` receives the source's bytes that are done.

    Runs in a child process: Ctrl-C ends it at once, and an abort of llama.cpp ends only the child.

    Raises:
        ModelError: the source cannot be read.
        ModelUnsupportedError: llama.cpp cannot quantize it.
    """
    sizes = {name: tensor.size for name, tensor in read_header(source).tensors.items()}
    environment = {**os.environ, "PYTHONPATH": str(Path(dg_lsp.__file__).parents[1])}
    command = python_command(__name__, str(source.absolute()), str(target.absolute()), str(kind.number))
    reason = ""
    with subprocess.Popen(
        command, env=environment, cwd=NEUTRAL_FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
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


def main(source: str, target: str, number: str) -> int:
    """Runs in the child process: quantizes, with llama.cpp's log on standard error, one line for each tensor."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    api = library().api
    api.llama_log_set(api.llama_log_callback(), None)  # llama.cpp's own log
    params = api.llama_model_quantize_default_params()
    params.ftype, params.max_buf_size = int(number), _BUFFER_BYTES
    return int(api.llama_model_quantize(os.fsencode(source), os.fsencode(target), params))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
