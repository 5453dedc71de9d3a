"""Options that several commands have, and their settings. A group of options is one parameter, and a frozen value.

Importing this module loads no runtime and no engine, so that `dg-lsp lsp` beside a daemon starts fast.
"""

import functools
import inspect
import math
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from dg_lsp.canvas.spec import DecoderName, ModelSpec
from dg_lsp.cli.printing import note, print_line, warn
from dg_lsp.errors import InputFileError, UsageError
from dg_lsp.settings import SAMPLER_NAMES, SamplerOptions, Settings, parse_sampler, parse_settings, with_setting

Command = Callable[..., int]

Decoder = Annotated[DecoderName | None, Option("--decoder", help="Decoder instead of that of the settings.")]
Seed = Annotated[int, Option(min=0, metavar="N", help="Random seed; the same seed gives the same result.")]
Deadline = Annotated[
    float | None, Option(min=1, metavar="MS", help="Return the stable part after this time; the load does not count.")
]
Sampler = Annotated[
    list[str] | None,
    Option("--sampler", metavar="NAME=VALUE", help="Option of the sampler, such as canvas_length=32; may be repeated."),
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
    """The options of a command that reads a file, and can write it."""

    write: Annotated[bool, Option("--write", help="Write the result to the file.")] = False
    format: Annotated[
        Literal["text", "patch"], Option(help="patch prints a unified diff for git apply, and nothing else.")
    ] = "text"
    even_secret: Annotated[bool, Option("--even-secret", help="Send the file to the model even if it is excluded.")] = (
        False
    )
    test: Annotated[
        str | None,
        Option(
            metavar="COMMAND", help="A test that fails: take the first candidate with which it passes in a sandbox."
        ),
    ] = None
    test_deadline: Annotated[float, Option(min=1, metavar="MS", help="Kill a run of the test after this time.")] = 6e4

    def report(self, line: str) -> None:
        """Prints a line beside the result; a patch is alone on standard output."""
        print_line(line, err=self.format == "patch")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How code or a text is generated and shown."""

    decoder: Decoder = None
    deadline: Deadline = None
    seed: Seed = 0
    sampler: Sampler = None
    top_k: Annotated[
        int | None, Option(min=0, metavar="N", help="Draw from the N most probable tokens; 0: from all tokens.")
    ] = None
    prompt_attention: Annotated[
        Literal["auto", "exact", "per_request"], Option(help="How a bidirectional model computes the prompt.")
    ] = "auto"
    visual: Annotated[bool, Option("--visual", help="Show the canvas after each denoising step.")] = False
    as_json: Json = False

    def configured(self, settings: Settings) -> Settings:
        """The settings with `--prompt-attention`; `auto` keeps that of the model's table.

        Raises UsageError: an option does not apply to a remote server.
        """
        if settings.is_remote and (self.decoder is not None or self.prompt_attention != "auto"):
            problem = "a remote server chooses its decoder itself, and computes the prompt"
            raise UsageError(f"{problem}: leave --decoder and --prompt-attention out")
        return with_setting(settings, "model.prompt_attention", self.prompt_attention)

    @property
    def sampler_options(self) -> SamplerOptions:
        """The values of `--sampler`, which are written as in the settings file, and of `--top-k`.

        Raises UsageError for other ones.
        """
        texts = [*(self.sampler or ()), *([] if self.top_k is None else [f"top_k={self.top_k}"])]
        table: dict[str, Any] = {}
        for text in texts:
            try:
                table |= tomllib.loads(text)  # of a name that is given twice, the last value counts
            except tomllib.TOMLDecodeError as error:
                raise UsageError(f"--sampler takes NAME=VALUE, for example canvas_length=32, not {text}") from error
        if unknown := [name for name in table if name not in SAMPLER_NAMES]:
            raise UsageError(f"--sampler {unknown[0]}: the names are {', '.join(SAMPLER_NAMES)}")
        return parse_sampler("--sampler", table)

    def note_effects(self, spec: ModelSpec) -> None:
        """Prints a note for an option that has no effect on the model."""
        if self.top_k is not None and spec.noise != "uniform":
            note(f"--top-k has no effect, because {spec.name} draws no tokens: it takes the most probable ones")

    def end(self) -> float:
        """The deadline of a request that begins now, in `time.monotonic` seconds."""
        return math.inf if self.deadline is None else time.monotonic() + self.deadline / 1e3


def configure(
    overrides: Mapping[str, Any], report: Callable[[str], None] = warn, *, in_folder: bool = True
) -> Settings:
    """Defaults, the user's file, the nearest file in the working directory or above it, then `overrides`.

    Servers of several folders read the file of no folder (`in_folder`). `report` receives a message for each file and
    key that is ignored: commands that need no setting call this function for these messages.
    """
    from dg_lsp.models.registry import known_names
    from dg_lsp.settings_files import user_settings, with_workspace_file

    settings, messages = user_settings(known_names())
    try:
        folder = Path.cwd() if in_folder else None
    except OSError as error:
        raise InputFileError("the working directory does not exist any more: change to another one") from error
    settings, further = with_workspace_file(settings, folder, known_names())
    for message in (*messages, *further):
        report(message)
    return parse_settings(overrides, settings)


def with_groups(command: Command) -> Command:
    """A command with the options of a group in place of each parameter that is annotated with the group."""
    parameters = inspect.signature(command).parameters.values()
    own = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]
    groups: dict[str, Any] = {option.name: option.annotation for option in own if is_dataclass(option.annotation)}
    options = [
        inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
        for group in groups.values()
        for option in fields(group)
    ]
    shown = [*(parameter for parameter in own if parameter.name not in groups), *options]

    @functools.wraps(command)
    def called(**values: Any) -> int:
        for name, group in groups.items():
            values[name] = group(**{option.name: values.pop(option.name) for option in fields(group)})
        try:
            return command(**values)
        except KeyboardInterrupt:
            note("interrupted")
            raise

    called.__signature__ = inspect.Signature(shown, return_annotation=int)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called
