"""What all charts share: how ways look, both sizes of a drawing, and the figure around it with its table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dg_lsp.bench.report.markup import Html, element, join

NUM_COLOURS = 6


@dataclass(frozen=True, slots=True)
class Size:
    """Of a drawing, in its own pixels; text does not shrink with the page, so there is a drawing for narrow pages."""

    width: float
    is_narrow: bool


SIZES = (Size(760, is_narrow=False), Size(340, is_narrow=True))


def look(index: int, *, is_baseline: bool) -> str:
    """The class of a way's marks: the baseline is grey and dashed, the others differ in colour and in dashes."""
    return "base" if is_baseline else f"way{index % NUM_COLOURS}"


def drawn(draw: Callable[[Size], tuple[float, Sequence[Html]]], alternative: str) -> Html:
    """A drawing in all sizes, of which the page shows one. `draw` gives its height and its marks."""
    return join(_svg(size, *draw(size), alternative) for size in SIZES)


def figure(name: str, title: str, caption: str, drawing: Html, table: Html) -> Html:
    """A chart with its title, what is to be seen on it, and its numbers folded under it."""
    return element(
        "figure",
        element("h3", title, id=f"{name}-title"),
        element("p", caption, class_="hint"),
        drawing,
        element("details", element("summary", "The numbers as a table"), table),
        class_="chart",
        aria_labelledby=f"{name}-title",
    )


def key(looks: Sequence[tuple[str, str]]) -> Html:
    """Which line is which way, for pages too narrow for labels beside the lines."""
    return element(
        "ul",
        *(element("li", _swatch(look), " ", way) for way, look in looks),
        class_="key",
        aria_hidden="true",
    )


def _swatch(look: str) -> Html:
    line = element("path", d="M0 4H28", class_=f"line {look}")
    return element("svg", line, class_="swatch", viewBox="0 0 28 8", aria_hidden="true")


def table(
    caption: str,
    columns: Sequence[str],
    groups: Mapping[str, Sequence[Sequence[str]]],
    hint: str = "",
    look: str | None = None,
) -> Html:
    """A table that scrolls by itself where the page is too narrow.

    Args:
        caption: what it is about.
        columns: headings; the first is that of the rows' names.
        groups: rows under a heading, or under none where that is empty. A row's first cell names it.
        hint: how to read it.
        look: its class; `said` for cells that are words rather than numbers.
    """
    head = element("thead", element("tr", *(element("th", column, scope="col") for column in columns)))
    bodies = (_group(name, len(columns), rows) for name, rows in groups.items())
    said = element("caption", element("span", caption), element("span", hint, class_="hint") if hint else Html())
    return scroller(caption, element("table", said, head, *bodies, class_=look))


def scroller(label: str, *children: str) -> Html:
    """What may be wider than the page; reached by the keyboard, so that the arrow keys scroll it."""
    return element("div", *children, class_="scroller", role="region", aria_label=label, tabindex="0")


def _group(name: str, width: int, rows: Sequence[Sequence[str]]) -> Html:
    heading = [element("tr", element("th", name, scope="rowgroup", colspan=width), class_="group")] if name else []
    lines = (
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    )
    return element("tbody", *heading, *lines)


def _svg(size: Size, height: float, marks: Sequence[Html], alternative: str) -> Html:
    return element(
        "svg",
        *marks,
        class_="narrow" if size.is_narrow else "wide",
        viewBox=f"0 0 {size.width:g} {height:g}",
        role="img",
        aria_label=alternative,
    )
