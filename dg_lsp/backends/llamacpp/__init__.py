"""llama.cpp in this process, through llama-cpp-python. The native library is loaded on first use."""

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.library import Device, devices, require_runtime
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.settings import ModelSettings

__all__ = ["Device", "LlamaDenoiser", "LlamaModel", "denoiser_for", "devices"]


def denoiser_for(model: LlamaModel, spec: ModelSpec, settings: ModelSettings) -> LlamaDenoiser:
    """Chooses the denoiser by spec and settings. It takes the model over, unless this raises.

    Raises:
        ModelError: the model does not fit its spec, the settings, the installed llama.cpp or the memory.
    """
    from dg_lsp.backends.llamacpp.diffusiongemma.denoiser import SelfConditionedDenoiser
    from dg_lsp.backends.llamacpp.masked import BlockDenoiser, ExactDenoiser, PerRequestDenoiser, ShiftedDenoiser

    if spec.self_conditioning is not None:
        require_runtime(model.path)
        return SelfConditionedDenoiser(model, spec, settings)
    if spec.block_length:
        return BlockDenoiser(model, spec, settings)
    if spec.is_bidirectional:
        is_exact = settings.prompt_attention != "per_request"
        return (ExactDenoiser if is_exact else PerRequestDenoiser)(model, spec, settings)
    if spec.is_shifted and spec.sampling is not None and not spec.is_drafter:
        return ShiftedDenoiser(model, spec, settings)
    return LlamaDenoiser(model, spec, settings)
