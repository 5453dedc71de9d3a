"""Where models that were fetched lie: in the user's data folder, one folder each."""

from pathlib import Path

from dg_lsp.folder import VARIABLE, data_folder

__all__ = ["VARIABLE", "data_folder", "model_folder"]


def model_folder(name: str) -> Path:
    """The folder of one model."""
    return data_folder() / "models" / name
