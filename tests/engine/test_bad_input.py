"""Lines of megabytes, as minified files have."""

import tracemalloc
from unittest.mock import patch

import pytest
from scripted import ScriptedDenoiser, engine_for

from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.postprocess.syntax import LimitedParser

MEGABYTES = 5_000_000


def fill(text, before, after, language):
    engine = engine_for(ScriptedDenoiser(text), deadline_ms=60_000)
    snapshot = Snapshot("file:///a", before + after, language)
    return engine.fill(FillRequest(snapshot, len(before), priority=Priority.INVOKED))


@pytest.mark.parametrize(
    ("language", "piece", "before", "after"),
    [
        ("javascript", 'function a(b){return b.map((d)=>d*2)}var x={"k":[1,2]};', "var y=sum(", ");"),
        pytest.param("javascript", "(", "sum(", ")", id="open brackets"),
        ("html", '<div class="a"><p>b</p></div>', "<p>", "</p>"),
        ("python", "x = [1, 2]; ", "y = sum(", "); "),
    ],
)
def test_a_line_of_5_megabytes_is_filled_in_little_memory_without_a_parse(language, piece, before, after):
    half = piece * (MEGABYTES // 2 // len(piece))
    tracemalloc.start()
    try:
        with patch.object(LimitedParser, "root", autospec=True, side_effect=LimitedParser.root) as root:
            result = fill("1", half + before, after + half, language)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.text == "1"
    assert sum(len(call.args[1]) for call in root.call_args_list) < MEGABYTES / 10
    assert peak < 8 * MEGABYTES
