"""Whether a spec and a model's weights belong together."""

from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.errors import ModelUnsupportedError


def check_match(spec: ModelSpec, model: LlamaModel) -> None:
    """Refuses what could not be run over a cached prompt, or would make ggml abort the process later.

    Raises:
        ModelUnsupportedError: they do not fit each other, or there is no KV cache, or nothing to predict.
    """
    if not model.has_cache:
        raise ModelUnsupportedError(
            f"llama.cpp has no KV cache for {model.path}; set runtime.cache to recomputed, or use another model"
        )
    check_vocabulary(spec, model)


def check_vocabulary(spec: ModelSpec, model: LlamaModel) -> None:
    """Refuses token ids that the model does not have.

    Raises:
        ModelUnsupportedError: they do not fit each other, or there is nothing to predict.
    """
    named = [*spec.banned_ids, *spec.end_ids, *spec.start_ids]
    named += (
        [spec.sampling.mask_id, spec.sampling.expand_id or 0, spec.sampling.delete_id or 0]
        if isinstance(spec.sampling, MaskSampling)
        else []
    )
    if isinstance(sampling := spec.sampling, MaskSampling):
        named += [sampling.mask_id, sampling.expand_id or 0, sampling.delete_id or 0]
    named += [spec.fim.prefix_id, spec.fim.suffix_id, spec.fim.middle_id] if spec.fim else []
    if spec.vocab_size != model.vocab_size or not all(0 <= token < model.vocab_size for token in named):
        raise ModelUnsupportedError(f"{model.path}: its description does not fit its vocabulary of {model.vocab_size}")
    has_lengths = spec.sampling is None or min(spec.canvas_lengths, default=0) > 0
    if len(set(spec.banned_ids)) >= model.vocab_size or not has_lengths:
        raise ModelUnsupportedError(f"{model.path}: its description leaves nothing to predict; use another model")
