"""Draws a replay as an animated SVG: the keys, the ghost text and what was accepted, on the replay's own clock.

    python -m dg_benchmarks.typing_svg FILE FIRST-LAST OUT.svg [--speed 1]

The model is the bundled one with default settings; nothing is left out between the first key and the last.
"""

import argparse
import html
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dg_lsp.bench import replay
from dg_lsp.cli.bench import typing_tasks
from dg_lsp.cli.loading import open_engine
from dg_lsp.settings import Settings

NUM_BEFORE = 6
"""Lines of the file above the first typed one that the picture contains."""
CHAR, LINE, MARGIN = 8.4, 20, 16  # pixels
PAUSE_MS = 2500.0
"""The last frame stays this long."""
STYLE = """
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#24292f;white-space:pre}
.g{fill:#8c959f;font-style:italic}.c{fill:#0969da}.b{fill:#fff;stroke:#d0d7de}.n{fill:#57606a;font-size:12px}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{fill:#7d8590}.b{fill:#0d1117;stroke:#30363d}.n{fill:#7d8590}}
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """The screen from a time on."""

    at_ms: float
    lines: tuple[str, ...]  # without the ghost text
    ghost: str
    row: int
    column: int  # of the cursor


def frames(task: replay.TypingTask, events: Iterable[replay.Event]) -> Iterator[Frame]:
    """The first screen, and one for each event that changed something."""
    head = task.head.split("\n")[-NUM_BEFORE - 1 :]
    frame = Frame(0.0, tuple(head), "", len(head) - 1, len(head[-1]))
    typed = ""
    for event in events:
        if isinstance(event, replay.RequestEvent) and not event.is_displayed:
            continue
        at_ms = event.at_ms
        ghost = ""
        if isinstance(event, replay.RequestEvent):
            at_ms = event.at_ms + event.attempt.latency_ms
            ghost = event.attempt.text
        elif isinstance(event, replay.KeyEvent):
            typed += event.key
            ghost = event.item
        else:
            typed += event.text
        if at_ms > frame.at_ms:
            yield frame
        lines = ("\n".join(head) + typed).split("\n")
        frame = Frame(at_ms, tuple(lines), ghost.split("\n")[0], len(lines) - 1, len(lines[-1]))
    yield frame


def draw(screens: Sequence[Frame], caption: str) -> str:
    """The animation as SVG; where nothing moves, the last frame is shown."""
    rows = max(len(frame.lines) for frame in screens)
    columns = max(frame.column + len(frame.ghost) for frame in screens)
    columns = max(columns, *(len(line) for frame in screens for line in frame.lines), len(caption) * 6 // 7)
    names: dict[str, str] = {}
    drawn = [_frame(frame, names) for frame in screens]
    width, height = round(columns * CHAR + 2 * MARGIN), (rows + 1) * LINE + 2 * MARGIN
    lines = "".join(
        f'<text id="{name}" x="{MARGIN}" textLength="{CHAR * len(line):.1f}">{html.escape(line)}</text>'
        for line, name in names.items()
    )
    at_ms = [frame.at_ms for frame in screens]
    shown = f"<defs>{lines}</defs>\n{animation(drawn, at_ms, screens[-1].at_ms + PAUSE_MS)}"
    return picture(shown, width, height, caption)


def picture(shown: str, width: int, height: int, caption: str) -> str:
    """An SVG of this size in pixels, with a frame around it and the caption below what it shows."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<title>{html.escape(caption)}</title><style>{STYLE}</style>\n"
        f'<rect class="b" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6"/>\n{shown}'
        f'<text class="n" x="{MARGIN}" y="{height - 12}">{html.escape(caption)}</text>\n</svg>\n'
    )


def animation(drawn: Sequence[str], at_ms: Sequence[float], total_ms: float) -> str:
    """Drawings that replace each other at these times, for ever; where nothing moves, the last one is shown."""
    times = [*(moment / total_ms for moment in at_ms), 1.0]
    return "".join(
        f'<g visibility="{"visible" if end == 1 else "hidden"}">{_visible(start, end, total_ms)}{body}</g>\n'
        for body, (start, end) in zip(drawn, pairwise(times), strict=True)
    )


def _frame(frame: Frame, names: dict[str, str]) -> str:
    """Lines by reference, the cursor and the ghost text."""
    used = "".join(
        f'<use href="#{names.setdefault(line, f"l{len(names)}")}" y="{_y(row)}"/>'
        for row, line in enumerate(frame.lines)
        if line.strip()
    )
    x = MARGIN + frame.column * CHAR
    cursor = f'<rect class="c" x="{x:.1f}" y="{_y(frame.row) - 14}" width="2" height="18"/>'
    ghost = f'<text class="g" x="{x:.1f}" y="{_y(frame.row)}">{html.escape(frame.ghost)}</text>' if frame.ghost else ""
    return used + ghost + cursor


def _y(row: int) -> int:
    return MARGIN + (row + 1) * LINE - 6


def _visible(start: float, end: float, total_ms: float) -> str:
    """The part of each round in which a frame is visible."""
    times = [(0.0, "hidden"), (start, "visible"), (end, "hidden")]
    times = times[start == 0 :][: 3 - (end == 1)]
    values = ";".join(value for _, value in times)
    keys = ";".join(f"{time:.5f}".rstrip("0").rstrip(".") for time, _ in times)
    how = f'dur="{total_ms / 1e3:.2f}s" repeatCount="indefinite" calcMode="discrete"'
    return f'<animate attributeName="visibility" values="{values}" keyTimes="{keys}" {how}/>'


def main(arguments: list[str] | None = None) -> None:
    """Types the lines and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("lines", metavar="FIRST-LAST")
    parser.add_argument("out", type=Path)
    parser.add_argument("--speed", type=float, default=1.0, help="of the typist; the model keeps its own")
    given = parser.parse_args(arguments)
    settings = Settings()
    tasks = typing_tasks([given.file], given.lines, settings)
    typist = replay.TypingModel(speed=given.speed)
    with closing(open_engine(settings)) as engine:
        played = replay.Replay(tasks, typist)
        events = list(played.run(engine))
        numbers = replay.summarize_replay(events)
        saved = numbers["keystrokes_saved"]
        p50 = numbers["ttfue_ms"]["p50"] or 0
        caption = f"{engine.spec.name} on {os.cpu_count()} CPU cores, default settings, typed at {given.speed:g}x"
    caption += f": {100 * saved:.0f} % of the keys saved, useful text after {p50:.0f} ms"
    given.out.write_text(draw(list(frames(tasks[0], events)), caption), encoding="utf-8")
    print(f"{given.out}: {caption}")


if __name__ == "__main__":
    main()
