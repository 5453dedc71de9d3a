"""The judgement of a fill at a marked position, and positions from the files in `cases`."""

import re
from pathlib import Path

import pytest

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
    """Parameters from a file in `cases`: code that is easier to read outside of Python's strings.

    A case begins with a title after `===`, whose first word is the language, and a marked text; then come the parts
    after `---`. A text or part has no line end at its end, unless a blank line follows. A missing part is None.
    """
    text = Path(__file__).with_name("cases").joinpath(f"{name}.txt").read_text(encoding="utf-8")
    for case in re.split("^=== ", text, flags=re.MULTILINE)[1:]:
        title, _, body = case.partition("\n")
        marked, *named = (part.removesuffix("\n") for part in re.split(r"^--- (\w+)\n", body, flags=re.MULTILINE))
        texts = dict(zip(named[::2], named[1::2], strict=True))
        yield pytest.param(title.partition(":")[0], marked, *map(texts.get, parts), id=title)
