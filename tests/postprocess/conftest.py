"""The judgement of a fill at a marked position, and positions from the files in `cases`."""

from pathlib import Path

import pytest
from cases import read_cases

from dg_lsp.context.document import Cursor, Snapshot
from dg_lsp.postprocess.validate import judge


def judged(marked, fill, language="python", *, max_lines=None, must_parse=False, **cells):
    """`marked` is the text with `¦`, or with `|` if it has none, at the cursor; `cells` are lengths of a snapshot."""
    before, _, after = marked.partition("¦" if "¦" in marked else "|")
    return judge(
        fill if isinstance(fill, bytes) else fill.encode(),
        snapshot=Snapshot("file:///x", before + after, language, **cells),
        offset=len(before),
        cursor=Cursor.at(before + after, len(before)),
        max_lines=max_lines,
        score=-0.5,
        must_parse=must_parse,
    )


def cases(name, *parts):
    """Parameters from a file in `cases`: the language, the marked text, and these parts; a missing part is None."""
    return [
        pytest.param(title.partition(":")[0], marked, *map(texts.get, parts), id=title)
        for title, marked, texts in read_cases(Path(__file__).with_name("cases") / f"{name}.txt")
    ]
