"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from dg_lsp.errors import UsageError

DEFAULT_ROOT = Path.home() / ".cache" / "dg-lsp" / "training"

Root = Annotated[
    Path, typer.Option(default_factory=lambda: DEFAULT_ROOT, envvar="DG_LSP_TRAINING_ROOT", help="Work folder.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda; default: cuda where available.")]
Causal = Annotated[bool, typer.Option("--causal", help="No canvases: the first stage.")]
Name = Annotated[str, typer.Option(help="Name in the file; default: the checkpoint's.")]
FileType = Annotated[
    Literal["F32", "F16", "Q8_0", "IQ4_NL"],
    typer.Option("--format", help="Of the matrices; the network is trained with weights in IQ4_NL."),
]


def device_of(name: str) -> str:
    """The device of the option; UsageError for a GPU where there is none."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("torch finds no GPU: leave out --device")
    return name or ("cuda" if torch.cuda.is_available() else "cpu")
