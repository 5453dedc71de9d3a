"""A session of an editor without a connection, whose model runs nothing."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from lsprotocol import types
from scripted import MASK_SPEC

from dg_lsp.context.document import Encoding
from dg_lsp.engine.scheduler import ResidentModels
from dg_lsp.server.acceptance import Acceptance
from dg_lsp.server.app import create_server
from dg_lsp.server.next_edit import NextEditProvider
from dg_lsp.settings import Settings

URI = "file:///project/a.py"


class FakeScheduler:
    """Records the URIs and the prompts that would be decoded in idle time."""

    def __init__(self, spec=MASK_SPEC):
        self.ready = Future()
        self.ready.set_result(SimpleNamespace(spec=spec))
        self.warmed = []

    def warm_up(self, request, _settings):
        self.warmed.append((request.snapshot.uri, request.snapshot.text[: request.offset]))


class Editor:
    """A server, and what an editor sends to it. The test advances its clock."""

    def __init__(self, spec=MASK_SPEC):
        self.seconds = 1000.0
        self.outcomes = []
        self.logged = []
        self.requests = []
        """Those of next edits, which a model would answer."""
        self.model = lambda _request: None
        self.server = create_server(None, Settings())
        self.documents = self.server.documents
        self.exclusion = self.server.exclusion
        self.server.log = lambda _kind, message: self.logged.append(message)
        clock = lambda: self.seconds  # noqa: E731
        self.server.acceptance = Acceptance(self.documents, self.outcomes.append, clock)
        self.server.next_edits = NextEditProvider(
            self.documents, self.exclusion, self.ask_model, self.server.acceptance.offer, clock
        )
        self.scheduler = FakeScheduler(spec)
        self.server._models = ResidentModels(lambda _: self.scheduler, Settings())

    async def ask_model(self, request):
        self.requests.append(request)
        return self.model(request)

    def open(self, text, uri=URI, language="python"):
        self.server.open_documents([types.TextDocumentItem(uri, language, 1, text)])

    def close(self, uri=URI):
        self.server.close_documents([uri])

    def text(self, uri=URI):
        return self.documents.get(uri).lines.text

    def edit(self, *changes, uri=URI):
        """Each change has a start, an end and a text; it is one of the text after the changes before it."""
        document = self.documents.get(uri)
        lines = document.lines
        events = []
        for start, end, text in changes:
            ends = (types.Position(*lines.position_at(offset, Encoding.UTF16)) for offset in (start, end))
            events.append(types.TextDocumentContentChangePartial(types.Range(*ends), text))
            lines = lines.replaced(start, end, text)
        self.seconds += 0.2
        identifier = types.VersionedTextDocumentIdentifier(version=document.version + 1, uri=uri)
        self.server.change_document(identifier, events)

    def replace(self, old, new, uri=URI):
        """Replaces the first occurrence of a text."""
        start = self.text(uri).index(old)
        self.edit((start, start + len(old), new), uri=uri)

    def insert(self, text):
        """Inserts a text at the end."""
        end = len(self.text())
        self.edit((end, end, text))

    def shows(self, *items, at=None, is_invoked=False):
        """Names of the items that the server shows at an offset or at the end, 80 ms after their request."""
        at = len(self.text()) if at is None else at
        followed = self.server.acceptance.request(URI, at, at, is_invoked=is_invoked)
        self.seconds += 0.08
        return self.server.acceptance.answer(followed, items, "m")


@pytest.fixture
def editor():
    return Editor()
