"""DiffusionGemma through Hugging Face transformers, in this process. torch is imported with the first model."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from dg_lsp.backends.threads import set_wait_policy
from dg_lsp.canvas.spec import Checkpoint, ModelSpec
from dg_lsp.errors import BackendError, with_extra
from dg_lsp.settings import ModelSettings

if TYPE_CHECKING:
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser


def open_checkpoint(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    settings: ModelSettings,
    report: Callable[[str], None] = lambda _: None,
) -> "TransformersDenoiser":
    """Loads a checkpoint directory; `report` receives the memory that it needs, before weights are loaded.

    Raises:
        BackendError: torch or transformers is missing or too old.
        ModelError: the checkpoint is broken, or does not fit into memory.
        SettingsError: this machine does not have the device.
    """
    set_wait_policy(os.environ)
    try:
        from dg_lsp.backends.transformers.denoiser import load
    except ImportError as error:
        problem = f"{checkpoint.folder} is a checkpoint and needs torch and transformers 5.23 or later ({error})"
        advice = f"{with_extra('transformers')}; or convert it to a GGUF with dg-lsp models convert"
        raise BackendError(f"{problem}: {advice}") from error
    return load(checkpoint, spec, settings, report)
