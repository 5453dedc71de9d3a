"""What a relay keeps of a session is enough to open it again."""

from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import converters, types

from dg_lsp.context.document import Encoding
from dg_lsp.daemon import journal as journal_module
from dg_lsp.daemon.journal import Journal
from dg_lsp.server.documents import DocumentStore

URI = "file:///a.py"
CONVERTER = converters.get_converter()
KINDS = {
    "textDocument/didOpen": types.DidOpenTextDocumentParams,
    "textDocument/didChange": types.DidChangeTextDocumentParams,
    "textDocument/didClose": types.DidCloseTextDocumentParams,
}


def opened(text, version=1, uri=URI):
    item = {"uri": uri, "languageId": "python", "version": version, "text": text}
    return {"method": "textDocument/didOpen", "params": {"textDocument": item}}


def changed(version, *changes, uri=URI):
    params = {"textDocument": {"uri": uri, "version": version}, "contentChanges": [*changes]}
    return {"method": "textDocument/didChange", "params": params}


def at(line, start, end, text):
    span = {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}
    return {"range": span, "text": text}


def heard(messages):
    """The documents of a server that hears these messages."""
    documents = DocumentStore(Encoding.UTF16)
    for message in messages:
        params = CONVERTER.structure(message["params"], KINDS[message["method"]])
        if isinstance(params, types.DidOpenTextDocumentParams):
            documents.open(params.text_document)
        elif isinstance(params, types.DidChangeTextDocumentParams):
            assert documents.change(params.text_document, params.content_changes)
        else:
            documents.close(params.text_document.uri)
    return documents


def kept(messages):
    journal = Journal()
    journal.note({"method": "initialized", "params": {}})
    for message in messages:
        journal.note(message)
    first, *rest = journal.messages()
    assert first["method"] == "initialized"
    return journal, rest


EDITS = st.lists(
    st.one_of(
        st.builds(at, st.integers(0, 3), st.integers(0, 3), st.integers(3, 9), st.sampled_from(["", "é😋", "x\ny"])),
        st.builds(lambda text: {"text": text}, st.sampled_from(["", "whole\n", "a😋\r\nb"])),
    ),
    max_size=4,
)


@given(st.lists(EDITS, max_size=12))
def test_a_server_that_hears_it_has_the_same_text(edits):
    messages = [opened("first\nsecond é😋\n"), *(changed(2 + number, *edit) for number, edit in enumerate(edits))]
    _, rest = kept(messages)
    was, is_now = heard(messages).get(URI), heard(rest).get(URI)
    assert is_now.lines.text == was.lines.text
    last = max((number for number, edit in enumerate(edits) if edit), default=None)
    assert is_now.version == (1 if last is None else 2 + last)
    assert is_now.language == "python"


def test_what_is_known_of_a_text_shortens_what_is_kept(monkeypatch):
    monkeypatch.setattr(journal_module, "LONGEST", 3)
    typed = [opened(""), *(changed(2 + number, at(0, number, number, "x")) for number in range(4))]
    journal, _ = kept(typed)
    document = journal.documents[URI]
    assert document.is_long
    document.is_asked = True
    assert not document.is_long
    later = changed(6, at(0, 4, 4, "y"))
    journal.note(later)
    document.hold(5, "xxxx")
    rest = list(journal.messages())[1:]
    assert [message["method"] for message in rest] == ["textDocument/didOpen", "textDocument/didChange"]
    assert heard(rest).get(URI).lines.text == "xxxxy"


def test_a_closed_document_is_forgotten_and_others_are_not():
    closing = {"method": "textDocument/didClose", "params": {"textDocument": {"uri": URI}}}
    _, rest = kept([opened("a"), opened("b", uri="file:///b.py"), closing, changed(2, {"text": "late"})])
    assert [message["params"]["textDocument"]["uri"] for message in rest] == ["file:///b.py"]


def test_the_last_settings_count_and_come_before_documents():
    def settings(number):
        return {"method": "workspace/didChangeConfiguration", "params": {"settings": {"n": number}}}

    watch = {"method": "dg-lsp/watch", "params": {"on": True}}
    _, rest = kept([watch, settings(1), opened("a"), settings(2)])
    assert rest == [settings(2), opened("a"), watch]


def test_nothing_is_said_before_the_editor_is_ready():
    journal = Journal()
    journal.note({"id": 1, "method": "initialize", "params": {}})
    assert list(journal.messages()) == []


def test_messages_that_are_not_as_they_should_be_are_left_alone():
    for params in (None, [], {}, {"textDocument": None}, {"textDocument": {"uri": 5}}):
        for method in ("textDocument/didOpen", "textDocument/didChange", "textDocument/didClose", None):
            _, rest = kept([{"method": method, "params": params}])
            assert rest == []
    _, rest = kept([opened("a"), {"method": "textDocument/didChange", "params": {"textDocument": {"uri": URI}}}])
    assert rest == [opened("a")]
