"""The devices that llama.cpp sees, with their memory."""

import ctypes
from dataclasses import dataclass

from dg_lsp.backends.llamacpp.library import library

_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}  # enum ggml_backend_dev_type


@dataclass(frozen=True, slots=True)
class Device:
    """One device, for `doctor`."""

    name: str
    kind: str
    """`cpu`, `gpu`, `igpu` (shares the machine's memory), `accelerator` (such as BLAS) or `other`."""
    memory_free: int
    """Bytes; 0 where the driver does not say."""
    memory_total: int
    """Bytes; 0 where the driver does not say."""


def devices() -> tuple[Device, ...]:
    """All devices, in llama.cpp's order.

    Raises:
        BackendError: llama-cpp-python cannot be loaded.
    """
    ggml = library().ggml
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    for function, result in ((ggml.ggml_backend_dev_description, ctypes.c_char_p), (ggml.ggml_backend_dev_type, int)):
        function.argtypes = [ctypes.c_void_p]
        function.restype = ctypes.c_int if result is int else result
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_pointer, size_pointer]
    ggml.ggml_backend_dev_memory.restype = None
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        name = (ggml.ggml_backend_dev_description(device) or b"").decode("utf-8", "replace").strip()
        kind = _KINDS.get(ggml.ggml_backend_dev_type(device), "other")
        found.append(Device(name, kind, free.value, total.value))
    return tuple(found)


def gpus() -> tuple[Device, ...]:
    """Those that llama.cpp puts layers on: all cards, and only without any what shares the machine's memory."""
    found = devices()
    cards = tuple(device for device in found if device.kind == "gpu")
    return cards or tuple(device for device in found if device.kind == "igpu")


def has_gpu() -> bool:
    """Whether layers can be offloaded."""
    if not library().api.llama_supports_gpu_offload():
        return False
    return bool(gpus())
