"""`dg-lsp bench infill --sweep`: the same cases with each combination of sampler options, by one model."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from dg_lsp.bench.contenders import Contender, EngineContender, RequestOptions
from dg_lsp.bench.metrics import by_contender, sweep_table
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import measurements
from dg_lsp.cli.measurements import BenchModel, Cases, finish, infill_summary
from dg_lsp.cli.options import check_decoder, sampler_of
from dg_lsp.errors import UsageError
from dg_lsp.sampler_options import SamplerOptions, parse_option
from dg_lsp.settings import Settings

Sweep = Mapping[str, SamplerOptions]
"""Combinations by name, see `sweep_of`."""


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
    return {_label(one): sampler_of({**sampler.values, **one}) for one in combinations}


def _label(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={str(value).lower()}" for name, value in values.items())


def measure_sweep(
    cases: Cases, settings: Settings, options: RequestOptions, decoder: DecoderName | None, sweep: Sweep
) -> int:
    """Runs the combinations in turn and in a new order at each case; returns the exit code.

    The values are not part of the header: a resumed run may add some.
    """
    check_decoder(decoder, settings)
    if settings.is_remote:
        raise UsageError("a remote server has its own sampler: leave --sweep out")
    opening = _open_sweep(settings, decoder, options, sweep)
    run, films = cases.run("infill", settings, options, opening, {"decoder": decoder, "sweep": True})
    groups = by_contender(run.attempts)
    rows = [{"sampler": _swept(sweep[name], options), **infill_summary(group)} for name, group in groups.items()]
    tree = {"model": run.header.model, "length_knowledge": options.length, "sweep": rows} if cases.as_json else None
    return finish(run, [sweep_table(groups)], tree, cases.html, films)


def _swept(sampler: SamplerOptions, options: RequestOptions) -> dict[str, Any]:
    """What a combination changes."""
    return {name: value for name, value in sampler.values.items() if name not in options.sampler.values}


@contextmanager
def _open_sweep(
    settings: Settings, decoder: DecoderName | None, options: RequestOptions, sweep: Sweep
) -> Iterator[tuple[BenchModel, list[Contender]]]:
    """One model for all combinations; each is a client of its own, so that no prompt is cached by another one."""
    opened = measurements.open_model(settings)
    with closing(opened.engine):
        contenders: list[Contender] = [
            EngineContender(name, opened.engine, decoder, replace(options, sampler=sampler), client=name)
            for name, sampler in sweep.items()
        ]
        yield opened, contenders
