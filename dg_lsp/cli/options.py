"""Options shared by several commands."""

from typing import Annotated

import typer

from dg_lsp.canvas.spec import DecoderName, PromptFormat

Model = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="Name of a model, auto, or path of a GGUF file.")
]
GpuLayers = Annotated[
    int | None,
    typer.Option("--gpu-layers", metavar="N", help="Layers on the GPU; -1 means all, 0 means none."),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="CPU threads; 0 measures and takes the fastest number.")
]
Remote = Annotated[
    str | None, typer.Option("--remote", metavar="URL", help="URL of a server to use instead of a local model.")
]
Decoder = Annotated[DecoderName | None, typer.Option("--decoder", help="Decoder, instead of the one in the settings.")]
Format = Annotated[
    PromptFormat | None,
    typer.Option("--prompt-format", help="Prompt format, instead of the model's default."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object only.")]
