"""What a report is made of. Knows no markup."""

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from dg_lsp.bench.runs import Header
from dg_lsp.engine.result import Frame
from dg_lsp.metrics.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Film:
    """One fill, step by step."""

    site: str
    """The site's id."""
    want: str
    """The reference."""
    frames: tuple[Frame, ...]
    before: str = ""
    """Some text before the cursor, its line's beginning included."""
    after: str = ""
    """Some text after the cursor."""
    text: str = ""
    """What the engine would show; empty when nothing was worth showing."""
    decoder: str = ""
    """That really ran."""
    why: str = ""
    """What it is an example of."""


@dataclass(frozen=True, slots=True)
class Table:
    """Further numbers of one benchmark, beside those that all of them have."""

    caption: str
    columns: tuple[str, ...]
    """The first is the heading of the rows' names."""
    rows: tuple[tuple[str, ...], ...]
    """As many cells each as there are columns, the first names the row."""
    note: str = ""
    """How to read it, one sentence."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one page shows."""

    title: str
    machine: Mapping[str, object]
    """Facts of where it ran: processor, system, versions, the model's sha256. Nested mappings are flattened."""
    options: Mapping[str, object]
    """What was asked for on the command line."""
    attempts: Mapping[str, Sequence[Attempt]]
    """By way, the product's own first."""
    films: Sequence[Film] = ()
    notes: Sequence[str] = ()
    """Sentences a reader must know, such as what was known of the length."""
    tables: Sequence[Table] = ()
    baseline: str = "autoregressive"
    """The way that the others are held against, drawn dashed; need not be among them."""
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())

    @classmethod
    def of_run(
        cls,
        title: str,
        header: Header,
        attempts: Iterable[Attempt],
        *,
        films: Sequence[Film] = (),
        notes: Sequence[str] = (),
        tables: Sequence[Table] = (),
    ) -> Self:
        """A run as a page, its ways in the order in which they first come."""
        by_way: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            by_way.setdefault(attempt.way, []).append(attempt)
        machine = {name.replace("_", "-"): value for name, value in dataclasses.asdict(header.machine).items()}
        files = {**({} if header.model_sha256 is None else {header.model: header.model_sha256}), **header.data}
        return cls(
            title=title,
            machine={**machine, **{f"sha256 of {name}": digest for name, digest in files.items()}},
            options=header.options,
            attempts=by_way,
            films=films,
            notes=notes,
            tables=tables,
        )
