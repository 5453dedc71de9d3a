"""Options that several commands take, each written once."""

from typing import Annotated

import typer

from dg_lsp.canvas.spec import DecoderName, PromptFormat

Model = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="A model's name, auto, or the path of a GGUF file.")
]
GpuLayers = Annotated[
    int | None,
    typer.Option("--gpu-layers", metavar="N", help="Layers on the GPU; -1 is all of them, 0 stays on the CPU."),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="CPU threads of a step; 0 measures and takes the fastest.")
]
Remote = Annotated[
    str | None, typer.Option("--remote", metavar="URL", help="Ask the server there instead of a model here.")
]
Decoder = Annotated[
    DecoderName | None, typer.Option("--decoder", help="How a fill is decoded, instead of what is set.")
]
Format = Annotated[
    PromptFormat | None,
    typer.Option("--prompt-format", help="How the place is put to the model, instead of its own way."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
