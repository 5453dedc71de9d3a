"""Sampler options of several commands, and the combinations of a sweep."""

import itertools
from collections.abc import Sequence
from typing import Annotated, Any

from typer import Option

from dg_lsp.cli.options import with_group
from dg_lsp.errors import UsageError
from dg_lsp.sampler_options import SAMPLER_BOUNDS, SAMPLER_NAMES, SamplerOptions, parse_option

_PANEL = "Sampler (default: the model's own)"
_HELP = {
    "canvas_length": (int, "N", "Tokens denoised at once."),
    "max_denoising_steps": (int, "N", "Forward passes of one canvas at most."),
    "entropy_bound": (float, "NATS", "Uniform noise: accept positions while their entropies sum to less."),
    "t_max": (float, "T", "Uniform noise: temperature of the first step."),
    "t_min": (float, "T", "Uniform noise: temperature of the last step."),
    "stability_threshold": (int, "N", "Uniform noise: steps without a change before a canvas may end."),
    "confidence_threshold": (float, "P", "Masks: probability that fills one. Uniform noise: mean nats of the end."),
    "top_k": (int, "N", "Uniform noise: 1 takes the best token instead of a drawn one."),
}
_OPTIONS: dict[str, Any] = {
    name: Annotated[
        kind | None,
        Option(
            min=SAMPLER_BOUNDS[name][0],
            max=SAMPLER_BOUNDS[name][1],
            metavar=metavar,
            help=text,
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ]
    for name, (kind, metavar, text) in _HELP.items()
} | {
    "thinking": Annotated[
        bool | None,
        Option("--thinking/--no-thinking", help="Let the model think before it answers.", rich_help_panel=_PANEL),
    ]
}


def sampler_of(values: dict[str, Any]) -> SamplerOptions:
    """The options; raises UsageError for a number out of bounds."""
    try:
        return SamplerOptions(**values)
    except ValueError as error:
        raise UsageError(str(error)) from error


with_sampler_options = with_group("sampler", {name: (_OPTIONS[name], None) for name in SAMPLER_NAMES}, sampler_of)
"""The parameter `sampler` of a command is a `SamplerOptions`."""


def sweep_of(texts: Sequence[str], sampler: SamplerOptions) -> dict[str, SamplerOptions]:
    """All combinations of `NAME=VALUE,VALUE,...` over the other options, by a name such as `canvas_length=16`.

    Raises:
        UsageError: an unknown option, a bad value, one option twice, or one that `sampler` has already.
    """
    listed: dict[str, list[Any]] = {}
    for text in texts:
        name, has_values, values = text.partition("=")
        if not has_values or not values:
            raise UsageError(f"--sweep {text}: expected NAME=VALUE,VALUE,... such as canvas_length=16,32,64")
        if name in listed or name in sampler.values:
            raise UsageError(f"--sweep {text}: {name} is given twice")
        try:
            listed[name] = list(dict.fromkeys(parse_option(name, value.strip()) for value in values.split(",")))
        except ValueError as error:
            raise UsageError(f"--sweep {text}: {error}") from error
    combinations = (dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values()))
    return {_label(one): sampler_of({**sampler.values, **one}) for one in combinations} if listed else {}


def _label(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={str(value).lower()}" for name, value in values.items())
