"""Options that several commands have: each group is one parameter of a command, and one object when the command runs.

Importing this module loads no runtime and no engine, so that `--help` is fast.
"""

import functools
import inspect
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from dg_lsp.canvas.spec import DecoderName, PromptFormat
from dg_lsp.errors import UsageError
from dg_lsp.settings import SAMPLER_BOUNDS, SAMPLER_NAMES, SamplerOptions

if TYPE_CHECKING:
    from dg_lsp.settings import Settings

Command = Callable[..., int]


def with_group(
    parameter: str, options: Mapping[str, tuple[Any, Any]], build: Callable[[dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """A decorator: the command has these options in place of a parameter, which is made by `build`.

    An option is its annotation and its default.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]

    def decorate(command: Command) -> Command:
        own = [given for given in inspect.signature(command).parameters.values() if given.name != parameter]
        parameters = [*(given.replace(kind=keyword) for given in own), *added]

        @functools.wraps(command)
        def called(**given: Any) -> int:
            values = {name: given.pop(name) for name in options}
            return command(**given, **{parameter: build(values)})

        called.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
        called.__annotations__ = {**{given.name: given.annotation for given in parameters}, "return": int}
        return called

    return decorate


Model = Annotated[
    str | None,
    Option("--model", metavar="MODEL", help="Model: a name, auto, auto-diffusion, or the path of a GGUF file."),
]
GpuLayers = Annotated[int | None, Option("--gpu-layers", metavar="N", help="Layers on the GPU; -1: all, 0: none.")]
Threads = Annotated[int | None, Option("--threads", metavar="N", help="CPU threads; 0: the fastest number, measured.")]
Remote = Annotated[str | None, Option("--remote", metavar="URL", help="Server to use instead of a local model.")]
Decoder = Annotated[DecoderName | None, Option("--decoder", help="Decoder instead of that of the settings.")]
Seed = Annotated[int, Option(min=0, metavar="N", help="Random seed; the same seed gives the same result.")]
Format = Annotated[PromptFormat | None, Option("--prompt-format", help="Prompt format instead of the model's own.")]
SuffixLines = Annotated[
    int | None, Option(min=0, metavar="N", help="Number of lines after the cursor's line in the prompt.")
]
Deadline = Annotated[
    float | None, Option(min=1, metavar="MS", help="Return the stable part after this time; the load does not count.")
]
EvenSecret = Annotated[bool, Option("--even-secret", help="Send the file to the model even if it is excluded.")]
Write = Annotated[bool, Option("--write", help="Write the result to the file.")]
Visual = Annotated[bool, Option("--visual", help="Show the canvas after each denoising step.")]
Position = Annotated[
    str, Argument(metavar="FILE:LINE[:COL]", help="LINE and COL count from 1. Without COL: the end of the line.")
]
Json = Annotated[bool, Option("--json", help="Print one JSON object only.")]


def overrides(
    *, model: str | None = None, gpu_layers: int | None = None, threads: int | None = None, remote: str | None = None
) -> dict[str, Any]:
    """Options of the command line as a settings tree. With a remote server, `model` is a model of the server."""
    tree: dict[str, dict[str, Any]] = {"model": {"gpu_layers": gpu_layers, "threads": threads}}
    if remote is not None:
        tree |= {"remote": {"url": remote, "model": model}, "rewrite": {"model": ""}}
    elif model is not None:
        tree |= {"model": {**tree["model"], "name": model}, "remote": {"url": ""}}
    return {name: {key: value for key, value in part.items() if value is not None} for name, part in tree.items()}


MODEL_OPTIONS: dict[str, tuple[Any, Any]] = {
    "model": (Model, None),
    "remote": (Remote, None),
    "gpu_layers": (GpuLayers, None),
    "threads": (Threads, None),
}
with_model_options = with_group("over", MODEL_OPTIONS, lambda values: overrides(**values))
"""The parameter `over` is a settings tree, see `overrides`."""


def _only_model(values: dict[str, Any]) -> dict[str, Any]:
    named = {"rewrite": {"model": ""}} if values["model"] is not None else {}
    return {**overrides(**values), **named}


with_rewrite_model_options = with_group("over", MODEL_OPTIONS, _only_model)
"""The same for commands that take `rewrite.model`: a model that is named replaces that one too."""


_PANEL = "Sampler (default: the model's own)"
_THINKING = "Models that can think"
"""A panel of its own: the two names would leave too little room for the others on 80 columns."""
_HELP = {
    "canvas_length": (int, "N", "Tokens denoised at once."),
    "max_denoising_steps": (int, "N", "Forward passes of one canvas at most."),
    "entropy_bound": (float, "NATS", "Uniform noise: accept positions while their entropies sum to less."),
    "t_max": (float, "T", "Uniform noise: temperature of the first step."),
    "t_min": (float, "T", "Uniform noise: temperature of the last step."),
    "stability_threshold": (int, "N", "Uniform noise: steps without a change before a canvas may end."),
    "confidence_threshold": (
        float,
        "P",
        "Masks: least probability to fill. Uniform noise: mean entropy of the end.",
    ),
    "top_k": (int, "N", "Uniform noise: 1 takes the best token instead of a drawn one."),
    "thinking": (bool, None, "Let the model think before it answers."),
}


def _sampler_option(name: str, kind: type, metavar: str | None, text: str) -> Any:
    """An option that only `--help-all` shows."""
    least, most = SAMPLER_BOUNDS.get(name, (None, None))
    panel = _THINKING if kind is bool else _PANEL
    option = Option(
        min=least, max=most, metavar=metavar, help=text, rich_help_panel=panel, show_default=False, hidden=True
    )
    return Annotated[kind | None, option]


def _show_all(context: typer.Context, value: bool) -> None:
    if value:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


_HelpAll = Annotated[
    bool, Option("--help-all", is_eager=True, callback=_show_all, help="Show the options of the sampler too, and exit.")
]


def sampler_of(values: dict[str, Any]) -> SamplerOptions:
    """The options; raises UsageError for a number out of bounds."""
    try:
        return SamplerOptions(**{name: value for name, value in values.items() if name != "help_all"})
    except ValueError as error:
        raise UsageError(str(error)) from error


with_sampler_options = with_group(
    "sampler",
    {**{name: (_sampler_option(name, *_HELP[name]), None) for name in SAMPLER_NAMES}, "help_all": (_HelpAll, False)},
    sampler_of,
)
"""The parameter `sampler` of a command is a `SamplerOptions`."""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How a text or an answer is generated and shown."""

    max_tokens: int
    decoder: DecoderName | None
    context_length: int | None
    deadline: float | None
    seed: int
    visual: bool
    as_json: bool

    def over(self, tree: dict[str, Any]) -> dict[str, Any]:
        """The settings tree with the context length, if one is given."""
        if self.context_length is None:
            return tree
        return {**tree, "model": {**tree.get("model", {}), "context_length": self.context_length}}

    @property
    def limits(self) -> dict[str, Any]:
        """Fields of a `ChatRequest`."""
        return {"max_tokens": self.max_tokens, "seed": self.seed, "decoder": self.decoder}

    def end(self) -> float:
        """When a text that begins now has to be there, in `time.monotonic` seconds."""
        return math.inf if self.deadline is None else time.monotonic() + self.deadline / 1e3


def with_text_options(max_tokens: int) -> Callable[[Command], Command]:
    """The parameter `text` is a `TextOptions`; `max_tokens` is the default."""
    longest = Option("--max-tokens", "-n", min=1, max=1_000_000, metavar="N", help="Longest text in tokens.")
    room = Option(min=256, metavar="N", help="Most tokens of prompt and text together; default: up to 8192.")
    options = {
        "max_tokens": (Annotated[int, longest], max_tokens),
        "decoder": (Decoder, None),
        "context_length": (Annotated[int | None, room], None),
        "deadline": (Deadline, None),
        "seed": (Seed, 0),
        "visual": (Visual, False),
        "as_json": (Json, False),
    }
    return with_group("text", options, lambda values: TextOptions(**values))


def check_decoder(decoder: DecoderName | None, settings: "Settings") -> None:
    """Raises UsageError if a decoder is named for a remote server."""
    if settings.is_remote and decoder is not None:
        raise UsageError("a remote server chooses its decoder itself: leave --decoder out")
