"""The native library: loaded once, silenced, told how its threads should wait."""

import functools
import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from dg_lsp.backends.llamacpp.failures import library_error
from dg_lsp.backends.llamacpp.log import NativeLog

# Threads of OpenMP spin at each of a graph's hundreds of barriers unless told to sleep. As soon as anything else wants
# a core, the spinning one keeps it from the one that is waited for: steps of 5 ms took 15 to 1600 ms with two threads.
# Sleeping costs up to a half more where all cores are idle, which the measurement of threads takes into account.
_WAITING = ("OMP_WAIT_POLICY", "passive")
_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@dataclass(frozen=True, slots=True)
class Library:
    """llama.cpp's C functions and what it logged."""

    api: Any
    """The module `llama_cpp.llama_cpp`: untyped ctypes functions."""
    log: NativeLog
    callback: Any
    """The C callback; collected together with the library, never before."""

    @property
    def has_tiles(self) -> bool:
        """Built for AMX, whose tile set-up GCC optimises away: the first pass over 8-bit weights ends the process."""
        return b"AMX_INT8 = 1" in self.api.llama_print_system_info()


def choose_waiting(environment: MutableMapping[str, str]) -> None:
    """Sets how OpenMP threads wait, unless the user did; OpenMP reads it when it is loaded."""
    if not any(name in environment for name in _WAIT_VARIABLES):
        name, value = _WAITING
        environment[name] = value


@functools.cache
def library() -> Library:
    """The library; the first call loads it.

    Raises:
        BackendError: llama-cpp-python is not installed, or its native part cannot be loaded here.
    """
    choose_waiting(os.environ)
    try:
        from llama_cpp import llama_cpp as api
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise library_error(error) from error
    log = NativeLog()

    @api.llama_log_callback
    def write(level: int, text: bytes, _user_data: object) -> None:
        log.write(level, text)

    api.llama_log_set(write, None)
    api.llama_backend_init()
    return Library(api, log, write)
