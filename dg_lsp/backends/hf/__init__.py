"""DiffusionGemma through Hugging Face transformers, in this process. torch is loaded with the first model."""

from typing import TYPE_CHECKING

from dg_lsp.errors import BackendError

if TYPE_CHECKING:
    from dg_lsp.backends.hf.denoiser import HfDenoiser
    from dg_lsp.canvas.spec import Checkpoint, ModelSpec
    from dg_lsp.settings import RuntimeSettings


def open_checkpoint(checkpoint: "Checkpoint", spec: "ModelSpec", settings: "RuntimeSettings") -> "HfDenoiser":
    """Loads a checkpoint directory.

    Raises:
        BackendError: torch or transformers is missing or too old.
        ModelError: it is broken, or does not fit.
        SettingsError: there is no such device, or it cannot compute so.
    """
    try:
        from dg_lsp.backends.hf.opening import load
    except ImportError as error:
        raise BackendError(
            f"{checkpoint.folder} is a checkpoint, and transformers 5.23 or later with torch is needed to run one "
            f"({error}): pip install 'dg-lsp[hf]', or repack it to a GGUF with dg-lsp models repack"
        ) from error
    return load(checkpoint, spec, settings)
