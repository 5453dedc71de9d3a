"""llama.cpp in this process, through the stock llama-cpp-python. Nothing native is loaded before it is used."""

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.library import Device, devices
from dg_lsp.backends.llamacpp.model import LlamaModel

__all__ = ["Device", "LlamaDenoiser", "LlamaModel", "devices"]
