"""llama.cpp in this process, through llama-cpp-python. The native library is loaded on first use."""

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.library import Device, devices
from dg_lsp.backends.llamacpp.model import LlamaModel

__all__ = ["Device", "LlamaDenoiser", "LlamaModel", "devices"]
