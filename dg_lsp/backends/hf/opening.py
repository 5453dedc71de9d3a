"""A checkpoint directory to a denoiser: placed, weighed, loaded, its attention and reduction chosen."""

from importlib.util import find_spec

import torch
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.utils import logging

from dg_lsp.backends.hf import float8
from dg_lsp.backends.hf.denoiser import HfDenoiser, limits_for
from dg_lsp.backends.hf.devices import Placement, check_fits, need, place
from dg_lsp.backends.hf.failures import loading
from dg_lsp.backends.hf.network import Network
from dg_lsp.backends.hf.reduce import reduce
from dg_lsp.backends.hf.step import Reduce
from dg_lsp.backends.hf.tokenizer import HfTokenizer
from dg_lsp.canvas.spec import Checkpoint, ModelSpec
from dg_lsp.settings import RuntimeSettings

_GROUPED = "grouped_mm"
"""One multiplication for all experts, of static shape: it can be captured. transformers' `sonicmoe` would take the
wrong activation for this model (5.23), `batched_mm` copies an expert for each token."""


def load(checkpoint: Checkpoint, spec: ModelSpec, settings: RuntimeSettings) -> HfDenoiser:
    """See `open_checkpoint`."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    placement = place(settings, getattr(torch, checkpoint.stored_type))
    if placement.on_gpu:
        torch.cuda.set_device(placement.device)  # where kernels of this thread run and graphs are captured
    limits = limits_for(spec, settings.num_slots, settings.context_length)
    with loading(checkpoint.folder):
        config = DiffusionGemmaConfig.from_pretrained(checkpoint.folder, local_files_only=True)
    weights = weight_bytes(checkpoint, placement)
    check_fits(spec.name, need(weights, config.get_text_config(), spec, limits, placement), placement)
    tokenizer = HfTokenizer(checkpoint.folder, checkpoint.special_ids, spec.vocab_size)
    model = _weights(checkpoint, config, placement)
    if not settings.compile:  # it fuses more than norms by itself
        fuse(model, placement)
    return HfDenoiser(
        Network(model),
        spec,
        tokenizer,
        limits,
        reduce=reduction(placement),
        captures=placement.device.type == "cuda",
        compiles=settings.compile,
    )


def fuse(model: torch.nn.Module, placement: Placement) -> None:
    """Has norms computed by kernels of ours where there are a GPU and Triton."""
    if _has_kernels(placement):
        from dg_lsp.backends.hf import rows

        rows.fuse_norms(model)


def reduction(placement: Placement) -> Reduce:
    """The fused one where there are a GPU and Triton."""
    if not _has_kernels(placement):
        return reduce
    from dg_lsp.backends.hf import fused

    return fused.reduce


def _has_kernels(placement: Placement) -> bool:
    """torch's own wheels for GPUs bring Triton along."""
    return placement.on_gpu and find_spec("triton") is not None


def weight_bytes(checkpoint: Checkpoint, placement: Placement) -> int:
    """What the weights take once they are loaded."""
    wide = checkpoint.num_vectors if placement.is_float8 else checkpoint.num_weights
    return wide * placement.dtype.itemsize + (checkpoint.num_weights - wide)


def _weights(checkpoint: Checkpoint, config: DiffusionGemmaConfig, placement: Placement) -> torch.nn.Module:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # in 8 bits it is squeezed on the way to a device that may not hold it otherwise
    straight = {"device_map": {"": placement.device}} if placement.on_gpu and not placement.is_float8 else {}
    with loading(checkpoint.folder):
        model = DiffusionGemmaForBlockDiffusion.from_pretrained(
            checkpoint.folder,
            config=config,
            dtype=placement.dtype,
            experts_implementation=_GROUPED,
            local_files_only=True,
            **straight,
        )
        model.requires_grad_(False)
        model.model.encoder.vision_tower = model.model.encoder.embed_vision = None  # text is all there is
        if placement.is_float8:
            float8.squeeze(model, placement.device)
    return model
