"""Candidates as edits in a client's units."""

import pytest
from lsprotocol import types

from dg_lsp.context.document import Encoding, LineIndex
from dg_lsp.postprocess.validate import Candidate
from dg_lsp.server.documents import DocumentStore, inline_item, lsp_range

URI = "file:///a.py"


def item(text, encoding, line, character, selected=None):
    store = DocumentStore(encoding)
    store.open(types.TextDocumentItem(URI, "python", 1, text))
    params = types.InlineCompletionParams(
        context=types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic, selected),
        text_document=types.TextDocumentIdentifier(URI),
        position=types.Position(line, character),
    )
    return inline_item(Candidate("fill", -0.1), store.cursor(params), encoding)


def span(first_line, first, last_line, last):
    return types.Range(types.Position(first_line, first), types.Position(last_line, last))


@pytest.mark.parametrize(("encoding", "column"), [(Encoding.UTF8, 8), (Encoding.UTF16, 5), (Encoding.UTF32, 4)])
def test_an_item_stands_where_it_was_asked_for(encoding, column):
    made = item("\n# é😋", encoding, 1, column)
    assert made == types.InlineCompletionItem(insert_text="fill", range=span(1, column, 1, column))


@pytest.mark.parametrize(
    ("line", "character", "at"),
    [
        pytest.param(0, 99, (0, 4), id="column beyond the line"),
        pytest.param(9, 9, (1, 0), id="line beyond the text"),
        pytest.param(0, 3, (0, 2), id="inside a character"),
    ],
)
def test_an_items_range_is_a_position_the_text_has(line, character, at):
    made = item("ab😋\r\n", Encoding.UTF16, line, character)
    assert made.range == span(*at, *at)


def test_an_item_over_the_popups_selection_replaces_what_that_would():
    selected = types.SelectedCompletionInfo(range=span(0, 2, 0, 5), text="print")
    made = item("é pri", Encoding.UTF16, 0, 5, selected)
    assert made == types.InlineCompletionItem(insert_text="printfill", range=span(0, 2, 0, 5))


def test_a_range_over_lines():
    assert lsp_range(LineIndex.of("😋a\r\nbé"), 1, 6, Encoding.UTF16) == span(0, 2, 1, 2)
