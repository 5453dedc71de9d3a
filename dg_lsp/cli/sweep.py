"""`dg-lsp bench infill --sweep`: the same cases with each combination of sampler options, by one model."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from dg_lsp.bench.contenders import Contender, EngineContender, RequestOptions
from dg_lsp.bench.metrics import by_contender, sweep_table
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import measurements
from dg_lsp.cli.measurements import BenchModel, Cases, finish, infill_summary
from dg_lsp.cli.options import check_decoder
from dg_lsp.errors import UsageError
from dg_lsp.sampler_options import SamplerOptions
from dg_lsp.settings import Settings

Sweep = Mapping[str, SamplerOptions]
"""Combinations by name, see `sweep_of`."""


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
