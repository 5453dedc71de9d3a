"""A film of a fill: the code as it stands after each step, and the canvas as a table of steps by positions.

Everything is drawn here, every step of it; the page's script only shows and hides.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from dg_lsp.bench.report.chart import scroller
from dg_lsp.bench.report.markup import Html, element, join
from dg_lsp.bench.report.misses import pair
from dg_lsp.bench.report.record import Film
from dg_lsp.bench.report.wording import count
from dg_lsp.engine.result import Cell, Frame

MASK, LINE_END, END = "·", "↵", "∎"
BOUNDS = (0.2, 0.5, 0.7, 0.9, 0.99)
"""Confidences at which the colour changes; under the first a draft says nothing yet and stays a mask."""

_LONGEST = 18
"""Characters of a token that a cell of the table shows."""


def legend() -> Html:
    """What colours and letters mean."""
    ramp = [
        element("li", element("i", "a" if i else MASK, class_=f"c{i}", aria_hidden="true"), f" {_range(low, high)}")
        for i, (low, high) in enumerate(pairwise((0.0, *BOUNDS, 1.0)))
    ]
    letters = [
        element("li", element("i", "draft", class_="c2"), " not accepted yet"),
        element("li", element("i", "token", class_="c4 k n"), " accepted in this step"),
        element("li", element("i", "token", class_="c4 k"), " accepted before"),
        element("li", element("i", LINE_END, class_="c4 k"), " line end"),
        element("li", element("i", END, class_="c4 k"), " end of the fill"),
    ]
    return join(
        (
            element("p", "Confidence, the probability that the model gives the token:", class_="hint"),
            element("ul", *ramp, class_="legend"),
            element("ul", *letters, class_="legend"),
        )
    )


def _range(low: float, high: float) -> str:
    return f"{100 * low:.0f}–{100 * high:.0f} %"


def films(listed: Sequence[Film]) -> Html:
    """One panel per film, behind tabs where a script runs, one after the other elsewhere."""
    tabs = [
        element("button", _title(film), type="button", role="tab", id=f"tab-{i}", aria_controls=f"film-{i}")
        for i, film in enumerate(listed)
    ]
    bar = element("div", *tabs, role="tablist", aria_label="Films", hidden=True)
    return element("div", bar, *(_panel(film, i) for i, film in enumerate(listed)), data_tabs="films")


def _title(film: Film) -> str:
    return f"{film.why}: {film.site}" if film.why else film.site


def _panel(film: Film, i: int) -> Html:
    last = len(film.frames)
    facts = [film.decoder, count(last, "step"), count(max(_lengths(film), default=0), "position")]
    return element(
        "section",
        element("h3", _title(film)),
        element("p", ", ".join(fact for fact in facts if fact), class_="hint"),
        *(_code(film, k) for k in range(last)),
        _controls(film),
        _matrix(film),
        element("div", pair("wanted", film.want), pair("shown", film.text), class_="pair"),
        id=f"film-{i}",
        class_="film",
        data_steps=str(last),
    )


def _lengths(film: Film) -> Iterator[int]:
    return (len(frame.cells) for frame in film.frames)


def _controls(film: Film) -> Html:
    """Native buttons and a native slider: the keyboard works as it does everywhere."""
    buttons = [("first", "First"), ("back", "Back"), ("play", "Play"), ("next", "Next"), ("last", "Last")]
    last = str(len(film.frames))
    slider = element("input", type="range", min="1", max=last, value=last, step="1", aria_label="Step")
    return element(
        "div",
        *(element("button", text, type="button", data_do=do) for do, text in buttons),
        slider,
        element("output", _said(film, len(film.frames) - 1) if film.frames else ""),
        class_="controls",
        role="group",
        aria_label="Steps of the film; arrow keys step, space plays",
        hidden=True,
    )


def _said(film: Film, k: int) -> str:
    """One frame in words."""
    frame = film.frames[k]
    accepted = sum(cell.is_committed for cell in frame.cells)
    return f"Step {frame.step} of {film.frames[-1].step}: {accepted} of {len(frame.cells)} positions accepted"


def _code(film: Film, k: int) -> Html:
    """The lines around the cursor with the draft of one step in them; only the last step is shown without a script."""
    frame = film.frames[k]
    earlier = [before.settled_text for before in film.frames[:k] if before.block < frame.block][-1:]
    fill = element("span", *earlier, *_draft(film.frames, k), class_="fill")
    return element(
        "pre",
        element("code", film.before, fill, film.after),
        class_="code",
        data_step=str(k + 1),
        data_said=_said(film, k),
        hidden=k + 1 < len(film.frames),
    )


def _draft(frames: Sequence[Frame], k: int) -> Iterator[Html]:
    """The canvas up to its first end token, line ends as they will be."""
    for cell, is_new in zip(frames[k].cells, _new(frames, k), strict=True):
        if cell.is_end:
            return
        text = cell.text if _is_told(cell) else MASK
        yield element("i", text, class_=_class(cell, is_new=is_new))


def _matrix(film: Film) -> Html:
    caption = f"{film.site}: one row per step, one column per position"
    width = max(_lengths(film), default=0)
    positions = (element("th", str(i + 1), scope="col") for i in range(width))
    head = element("tr", element("th", "step", scope="col"), *positions)
    bodies = [
        element("tbody", *(_matrix_row(film.frames, k, width) for k in block))
        for _, block in groupby(range(len(film.frames)), lambda k: film.frames[k].block)
    ]
    table = element("table", element("caption", caption, class_="sr"), element("thead", head), *bodies, class_="matrix")
    return scroller(caption, table)


def _matrix_row(frames: Sequence[Frame], k: int, width: int) -> Html:
    """Filled up with empty cells where there is no canvas and the text only grows."""
    frame = frames[k]
    cells = [
        element("td", _shape(cell), class_=_class(cell, is_new=is_new), title=f"{100 * cell.confidence:.0f} %")
        for cell, is_new in zip(frame.cells, _new(frames, k), strict=True)
    ]
    cells += [element("td")] * (width - len(cells))
    return element("tr", element("th", str(frame.step), scope="row"), *cells, data_step=str(k + 1))


def _new(frames: Sequence[Frame], k: int) -> list[bool]:
    """Which positions this step accepted."""
    frame = frames[k]
    before = frames[k - 1].cells if k and frames[k - 1].block == frame.block else ()
    done = [cell.is_committed for cell in before]
    return [cell.is_committed and not any(done[i : i + 1]) for i, cell in enumerate(frame.cells)]


def _is_told(cell: Cell) -> bool:
    return cell.is_committed or cell.confidence >= BOUNDS[0]


def _class(cell: Cell, *, is_new: bool) -> str:
    """Colour of the confidence, `k` for accepted, `n` for just now: short, for there are thousands of cells."""
    colour = sum(cell.confidence >= bound for bound in BOUNDS)
    return f"c{colour}" + " k" * cell.is_committed + " n" * is_new


def _shape(cell: Cell) -> str:
    """A token in one cell, blanks made visible where there is nothing else."""
    if not _is_told(cell):
        return MASK
    if cell.is_end:
        return END
    text = cell.text.replace("\r\n", LINE_END).replace("\n", LINE_END).replace("\t", "⇥")
    if text and not text.strip(" "):
        text = "␣" if len(text) == 1 else f"␣{len(text)}"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
