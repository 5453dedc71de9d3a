"""Which denoiser runs a model: what its spec says it was trained with, and what the settings want of it."""

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.masked import ExactDenoiser, PerRequestDenoiser, ShiftedDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.runtime_check import require_runtime
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.settings import RuntimeSettings

OpenedDenoiser = LlamaDenoiser | ExactDenoiser


def denoiser_for(model: LlamaModel, spec: ModelSpec, settings: RuntimeSettings) -> OpenedDenoiser:
    """Takes the model over, unless it raises.

    Raises:
        ModelUnsupportedError: spec and model do not belong together, or a cache is wanted where there can be none.
        ModelRuntimeError: llama.cpp as installed would compute it wrongly.
        ModelNotFoundError, ModelBrokenError: the file beside the model's is missing or another one.
        ModelMemoryError: no memory for it.
    """
    if spec.self_conditioning is not None:
        require_runtime(model.path)
        return SelfConditionedDenoiser(model, spec, settings)
    if not spec.is_bidirectional:
        return LlamaDenoiser(model, spec, settings)
    if settings.prompt_attention not in ("per_request", "causal"):
        return ExactDenoiser(model, spec, settings)
    if not model.has_cache:
        architecture = model.metadata.get("general.architecture", "")
        raise ModelUnsupportedError(
            f"{spec.name}: llama.cpp knows {architecture} without a KV cache only; set runtime.prompt_attention to auto"
        )
    if settings.prompt_attention == "per_request":
        return PerRequestDenoiser(model, spec, settings)
    if not spec.is_shifted:
        raise ModelUnsupportedError(
            f"{spec.name} never was a causal model, so that a causal prompt means nothing to it; "
            "set runtime.prompt_attention to per_request or auto"
        )
    return ShiftedDenoiser(model, spec, settings)
