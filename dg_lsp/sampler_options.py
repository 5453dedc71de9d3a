"""Options of the denoising loop: of a request, or of a model in the user's settings file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

SAMPLER_BOUNDS = {
    "canvas_length": (1, 65_536),
    "max_denoising_steps": (1, 1024),
    "entropy_bound": (0.0, 1000.0),
    "t_max": (0.01, 10.0),
    "t_min": (0.01, 10.0),
    "stability_threshold": (0, 1024),
    "confidence_threshold": (0.0, 100.0),
    "top_k": (0, 1_048_576),
}
"""Least and greatest value of each number in `SamplerOptions`; a model may allow less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOptions:
    """How the model denoises, in place of its own values; None keeps them. See `UniformSampling` and `MaskSampling`."""

    canvas_length: int | None = None
    max_denoising_steps: int | None = None
    entropy_bound: float | None = None  # uniform noise only, as temperatures and stability
    t_max: float | None = None
    t_min: float | None = None
    stability_threshold: int | None = None
    confidence_threshold: float | None = None  # a probability for mask noise, nats for uniform noise
    top_k: int | None = None
    """Most probable tokens that a token is drawn from; 0: all. Only uniform noise draws, from all or from one."""
    thinking: bool | None = None
    """The model thinks before it answers a conversation."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a value out of bounds; the message names it."""
        for name, (least, most) in SAMPLER_BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                raise ValueError(f"{name} must be from {least:g} to {most:g}, not {value:g}")

    @property
    def values(self) -> dict[str, Any]:
        """The options that are set, by name."""
        options = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: value for name, value in options.items() if value is not None}


NO_OPTIONS = SamplerOptions()
SAMPLER_NAMES = tuple(option.name for option in fields(SamplerOptions))
_KINDS = {"thinking": bool}
_FLOATS = ("entropy_bound", "t_max", "t_min", "confidence_threshold")
KIND_WORDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
SAMPLER_KEY = "model.sampler"
"""The table of the user's settings file that has a table of options for each model."""
Samplers = tuple[tuple[str, SamplerOptions], ...]
"""Options of models by their names."""


def parse_samplers(value: Any) -> Samplers:
    """The options of models from their tables.

    Raises:
        ValueError: not a table of tables, or a bad option; the message names its key.
    """
    if not isinstance(value, Mapping) or not all(isinstance(table, Mapping) for table in value.values()):
        raise ValueError(f"{SAMPLER_KEY} needs a table for each model, such as [{SAMPLER_KEY}.dg-mini]")
    return tuple((str(name), _parse_table(f"{SAMPLER_KEY}.{name}", table)) for name, table in value.items())


def _parse_table(key: str, table: Mapping[str, Any]) -> SamplerOptions:
    for name, value in table.items():
        if name not in SAMPLER_NAMES:
            raise ValueError(f"unknown setting {key}.{ascii(name)[1:-1]:.80}: use {', '.join(SAMPLER_NAMES)}")
        kinds = (float, int) if name in _FLOATS else (_KINDS.get(name, int),)
        if type(value) not in kinds:
            raise ValueError(f"{key}.{name} must be {KIND_WORDS[kinds[0]]}, not {value!r:.80}")
    try:
        return SamplerOptions(**table)
    except ValueError as error:
        raise ValueError(f"{key}.{error}") from error
