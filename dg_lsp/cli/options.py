"""Options that several commands have: a group of them is one parameter of a command, and a frozen value.

Importing this module loads no runtime and no engine, so that `--help` is fast.
"""

import functools
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer
from typer import Argument, Option

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.errors import UsageError
from dg_lsp.settings import SAMPLER_BOUNDS, SamplerOptions, Settings

Command = Callable[..., int]

Decoder = Annotated[DecoderName | None, Option("--decoder", help="Decoder instead of that of the settings.")]
Seed = Annotated[int, Option(min=0, metavar="N", help="Random seed; the same seed gives the same result.")]
Deadline = Annotated[
    float | None, Option(min=1, metavar="MS", help="Return the stable part after this time; the load does not count.")
]
Json = Annotated[bool, Option("--json", help="Print one JSON object only.")]
Position = Annotated[
    str, Argument(metavar="FILE:LINE[:COL]", help="LINE and COL count from 1. Without COL: the end of the line.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model of a command, or the server that has it."""

    model: Annotated[
        str | None, Option(metavar="MODEL", help="Model: a name, auto, auto-diffusion, or the path of a GGUF file.")
    ] = None
    remote: Annotated[str | None, Option(metavar="URL", help="Server to use instead of a local model.")] = None
    gpu_layers: Annotated[int | None, Option(metavar="N", help="Layers on the GPU; -1: all, 0: none.")] = None
    threads: Annotated[int | None, Option(metavar="N", help="CPU threads; 0: the fastest number, measured.")] = None

    @property
    def tree(self) -> dict[str, Any]:
        """The options as a settings tree. With a remote server, `model` is a model of the server."""
        tree: dict[str, dict[str, Any]] = {"model": {"gpu_layers": self.gpu_layers, "threads": self.threads}}
        if self.remote is not None:
            tree |= {"remote": {"url": self.remote, "model": self.model}, "rewrite": {"model": ""}}
        elif self.model is not None:
            tree["model"]["name"] = self.model
            tree["remote"] = {"url": ""}
        return {name: {key: value for key, value in part.items() if value is not None} for name, part in tree.items()}

    @property
    def tree_of_rewrites(self) -> dict[str, Any]:
        """The same for commands that take `rewrite.model`: a model that is named replaces that one too."""
        return self.tree if self.model is None else self.tree | {"rewrite": {"model": ""}}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """What a command may do with the file that it is given."""

    write: Annotated[bool, Option("--write", help="Write the result to the file.")] = False
    even_secret: Annotated[bool, Option("--even-secret", help="Send the file to the model even if it is excluded.")] = (
        False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How code or a text is generated and shown."""

    decoder: Decoder = None
    deadline: Deadline = None
    seed: Seed = 0
    visual: Annotated[bool, Option("--visual", help="Show the canvas after each denoising step.")] = False
    as_json: Json = False

    def end(self) -> float:
        """When a text that begins now has to be there, in `time.monotonic` seconds."""
        return math.inf if self.deadline is None else time.monotonic() + self.deadline / 1e3


def check_decoder(decoder: DecoderName | None, settings: Settings) -> None:
    """Raises UsageError if a decoder is named for a remote server."""
    if settings.is_remote and decoder is not None:
        raise UsageError("a remote server chooses its decoder itself: leave --decoder out")


_SAMPLER_HELP: dict[str, tuple[type, str | None, str]] = {
    "canvas_length": (int, "N", "Tokens denoised at once."),
    "max_denoising_steps": (int, "N", "Forward passes of one canvas at most."),
    "entropy_bound": (float, "NATS", "Uniform noise: accept positions while their entropies sum to less."),
    "t_max": (float, "T", "Uniform noise: temperature of the first step."),
    "t_min": (float, "T", "Uniform noise: temperature of the last step."),
    "stability_threshold": (int, "N", "Uniform noise: steps without a change before a canvas may end."),
    "confidence_threshold": (float, "P", "Masks: least probability to fill. Uniform noise: mean entropy of the end."),
    "top_k": (int, "N", "Uniform noise: 1 takes the best token instead of a drawn one."),
    "thinking": (bool, None, "Let the model think before it answers."),
}


def _sampler_option(name: str) -> inspect.Parameter:
    """An option that only `--help-all` shows."""
    kind, metavar, text = _SAMPLER_HELP[name]
    least, most = SAMPLER_BOUNDS.get(name, (None, None))
    # the two names of a switch would leave too little room for the others on 80 columns
    panel = "Models that can think" if kind is bool else "Sampler (default: the model's own)"
    option = Option(
        min=least, max=most, metavar=metavar, help=text, rich_help_panel=panel, show_default=False, hidden=True
    )
    return _parameter(name, Annotated[kind | None, option], None)


def _show_all(context: typer.Context, value: bool) -> None:
    if value:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_GROUPS: dict[type, list[inspect.Parameter]] = {
    group: [_parameter(field.name, field.type, field.default) for field in fields(group)]
    for group in (ModelOptions, FileOptions, RunOptions)
}
_GROUPS[SamplerOptions] = [_sampler_option(name) for name in _SAMPLER_HELP]
_HELP_ALL = _parameter(
    "help_all",
    Annotated[
        bool,
        Option("--help-all", is_eager=True, callback=_show_all, help="Show the options of the sampler too, and exit."),
    ],
    False,
)


def with_groups(command: Command) -> Command:
    """A command with the options of a group in place of each parameter that is annotated with the group.

    Raises UsageError for a value that the group refuses.
    """
    given = inspect.signature(command).parameters
    groups = {name: parameter.annotation for name, parameter in given.items() if parameter.annotation in _GROUPS}
    own = [parameter.replace(kind=parameter.KEYWORD_ONLY) for name, parameter in given.items() if name not in groups]
    options = [option for group in groups.values() for option in _GROUPS[group]]
    if SamplerOptions in groups.values():
        options.append(_HELP_ALL)

    @functools.wraps(command)
    def called(**values: Any) -> int:
        values.pop("help_all", None)
        for name, group in groups.items():
            parts = {option.name: values.pop(option.name) for option in _GROUPS[group]}
            try:
                values[name] = group(**parts)
            except ValueError as error:
                raise UsageError(str(error)) from error
        return command(**values)

    called.__signature__ = inspect.Signature([*own, *options], return_annotation=int)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *options)}
    return called
