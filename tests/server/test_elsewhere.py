"""What is collected from elsewhere, and what never is."""

from dataclasses import replace

import attrs
import pytest
from lsprotocol import types

from dg_lsp.context.document import Encoding
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.context.snippets import NO_SNIPPETS, SnippetSource
from dg_lsp.server.context_provider import NEAR_LINES, ContextProvider
from dg_lsp.server.documents import DocumentStore
from dg_lsp.settings import ContextSettings, ExcludeSettings

SETTINGS = ContextSettings()
ONLY_OPEN = ContextSettings(imports=False, recent_edits=False, diagnostics=False)
SECRET = "hunter2"


class Session:
    """Documents and what is collected for them, as the server ties them together."""

    def __init__(self, root):
        self.root = root
        self.documents = DocumentStore(Encoding.UTF16)
        self.exclude = ExcludeSettings()
        self.elsewhere = ContextProvider(
            [root], lambda: self.documents, lambda snapshot: Exclusion(self.exclude).reason(snapshot)
        )

    def uri(self, name):
        return (self.root / name).as_uri()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def open(self, name, text, language="python"):
        self.documents.open(types.TextDocumentItem(self.uri(name), language, 1, text))

    def edit(self, name, line, text):
        document = self.documents.get(self.uri(name))
        self.elsewhere.edit(document, line)
        place = types.Range(types.Position(line, 0), types.Position(line, 0))
        identifier = types.VersionedTextDocumentIdentifier(version=document.version + 1, uri=document.uri)
        self.documents.change(identifier, [types.TextDocumentContentChangePartial(place, text)])

    def close(self, name):
        self.elsewhere.close(self.uri(name))
        self.documents.close(self.uri(name))

    def extra(self, name, offset=None, settings=SETTINGS):
        snapshot = self.documents.get(self.uri(name)).snapshot()
        return self.elsewhere.extra(snapshot, len(snapshot.text) if offset is None else offset, settings)

    def chunks(self, name, offset=None, settings=SETTINGS):
        return [(one.source, one.text) for one in self.extra(name, offset, settings).chunks]


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path)


def test_a_lonely_file_has_nothing(session):
    session.open("main.py", "total = 1\n")
    assert session.extra("main.py") is NO_SNIPPETS


def test_definitions_of_what_is_imported(session):
    session.write("pkg/tools.py", "def clean(text: str) -> str:\n    return text\n")
    session.open("pkg/main.py", "from .tools import clean\n\nclean(")
    [chunk] = session.extra("pkg/main.py").chunks
    assert (chunk.source, chunk.text) == (SnippetSource.IMPORTS, "def clean(text: str) -> str: ...")
    assert chunk.path.endswith("pkg/tools.py")
    assert str(session.root) not in chunk.path


def test_an_open_file_defines_what_its_buffer_says(session):
    session.write("pkg/tools.py", "def clean(): pass\n")
    session.open("pkg/main.py", "from .tools import clean\n")
    session.open("pkg/tools.py", "def clean(text): pass\n")
    settings = attrs.evolve(SETTINGS, open_files=False)
    assert session.chunks("pkg/main.py", settings=settings) == [(SnippetSource.IMPORTS, "def clean(text): ...")]


def test_of_open_files_the_part_that_is_like_the_cursors(session):
    filler = "\n".join(f"other_{number} = {number}" for number in range(60))
    session.open("far.py", filler + "\ntotal = price * amount + tax\n" + filler)
    session.open("near.py", "price = amount = tax = total = 0\n")
    session.open("main.py", "def bill(price, amount, tax):\n    total = ")
    first, second = session.chunks("main.py", settings=ONLY_OPEN)
    assert first == (SnippetSource.OPEN_FILES, "price = amount = tax = total = 0\n")
    assert "total = price * amount + tax" in second[1]


def test_a_place_that_was_edited_before_and_left(session):
    session.open("a.py", "\n".join(f"a_{number} = 0" for number in range(100)))
    session.open("main.py", "x = 1\n")
    settings = attrs.evolve(SETTINGS, open_files=False)
    session.edit("a.py", 50, "changed = 1\n")
    assert session.chunks("main.py", settings=settings) == []
    session.edit("main.py", 0, "y = 2\n")
    [(source, text)] = session.chunks("main.py", settings=settings)
    assert source is SnippetSource.EDITS
    assert "changed = 1" in text
    assert text.count("\n") == 16
    session.close("a.py")
    assert len(session.chunks("main.py", settings=settings)) == 1


def test_a_closed_document_is_remembered_where_it_was_edited(session):
    session.open("a.py", "def handled(event): ...\n")
    session.edit("a.py", 0, "import queue\n")
    session.close("a.py")
    session.open("main.py", "x = 1\n")
    assert [source for source, _ in session.chunks("main.py")] == [SnippetSource.EDITS]


def test_where_the_cursor_is_was_edited_last_and_is_not_shown_twice(session):
    session.open("main.py", "def handled(event):\n    return event\n")
    session.edit("main.py", 1, "    log(event)\n")
    session.elsewhere.edit(session.documents.get(session.uri("main.py")), 90)
    assert session.chunks("main.py") == []


def test_what_is_wrong_near_the_cursor_as_long_as_its_line_stands(session):
    session.open("main.py", "import os\nprint(pth)\nx = 1\n")
    document = session.documents.get(session.uri("main.py"))
    session.elsewhere.diagnose(document, 1, 1, [(1, "undefined name 'pth'"), (7, "beyond the end")])
    assert session.chunks("main.py") == [(SnippetSource.DIAGNOSTICS, "print(pth): undefined name 'pth'")]
    session.elsewhere.diagnose(document, 2, 2, [])
    assert len(session.chunks("main.py")) == 1
    session.edit("main.py", 1, "#")
    assert session.chunks("main.py") == []
    session.elsewhere.diagnose(document, 1, 1, [])
    session.open("main.py", "import os\nprint(pth)\nx = 1\n")
    assert session.chunks("main.py") == []


def test_every_source_has_a_switch(session):
    session.write("tools.py", "def clean(): pass\n")
    session.open("b.py", "clean = shown\n")
    session.open("c.py", "clean = edited\n")
    session.edit("c.py", 0, "clean = 1\n")
    session.open("main.py", "from tools import clean\nclean(pth)\n")
    session.edit("main.py", 1, "\n")
    session.elsewhere.diagnose(session.documents.get(session.uri("main.py")), 0, 9, [(2, "undefined name")])
    names = {
        "imports": SnippetSource.IMPORTS,
        "open_files": SnippetSource.OPEN_FILES,
        "recent_edits": SnippetSource.EDITS,
        "diagnostics": SnippetSource.DIAGNOSTICS,
    }
    assert {source for source, _ in session.chunks("main.py")} == set(names.values())
    for name, source in names.items():
        without = session.chunks("main.py", settings=attrs.evolve(SETTINGS, **{name: False}))
        assert {one for one, _ in without} == set(names.values()) - {source}


def test_typing_changes_nothing_of_it(session):
    session.write("pkg/tools.py", "def clean(text): pass\n")
    session.open("pkg/b.py", "def shown(text): return text\n")
    session.open("pkg/main.py", "from .tools import clean\n\n\ndef run(text):\n    ")
    first = session.extra("pkg/main.py")
    assert len(first.chunks) == 2
    for number, char in enumerate("return clean(shown(text))\n"):
        snapshot = session.documents.get(session.uri("pkg/main.py")).snapshot()
        session.open("pkg/main.py", snapshot.text + char)
        assert session.extra("pkg/main.py") == first, number


def test_it_is_collected_anew_once_the_cursor_is_elsewhere(session):
    session.open("b.py", "price = amount\n" + "\n" * 40 + "volume = pressure\n")
    text = "price = amount\n" * 3 + "\n" * 2000 + "volume = pressure\n" * 3
    session.open("main.py", text)
    assert "price" in session.chunks("main.py", 10)[0][1]
    assert "price" in session.chunks("main.py", 10 + NEAR_LINES)[0][1]
    assert "volume" in session.chunks("main.py", len(text))[0][1]


EXCLUDED = (".env", "pkg/secrets.toml", "deploy.pem", "vendored/pkg.py")


@pytest.mark.parametrize("name", EXCLUDED)
@pytest.mark.parametrize("way", ["open", "edited", "edited and closed"])
def test_no_word_of_an_excluded_file(session, name, way):
    session.exclude = ExcludeSettings(patterns=("vendored/",))
    session.open(name, f"total = price = '{SECRET}'\n")
    session.open("main.py", "total = price\n")
    if way != "open":
        session.edit(name, 0, f"key = '{SECRET}'\n")
        session.edit("main.py", 0, "\n")
    if way == "edited and closed":
        session.close(name)
    assert session.extra("main.py") is NO_SNIPPETS


def test_no_definition_of_an_excluded_file_on_disk_open_or_linked(session):
    session.exclude = ExcludeSettings(patterns=("vendored/", "credentials*.py"))
    session.write("vendored/keys.py", f"KEY = '{SECRET}'\n")
    session.write("credentials.py", f"KEY = '{SECRET}'\n")
    (session.root / "linked.py").symlink_to(session.root / "credentials.py")
    session.open("main.py", "from vendored.keys import KEY\nfrom credentials import KEY\nfrom linked import KEY\n")
    assert session.extra("main.py") is NO_SNIPPETS
    session.open("credentials.py", f"KEY = '{SECRET}'\n")
    assert session.extra("main.py") is NO_SNIPPETS


def test_a_file_that_is_excluded_later_is_gone_at_once(session):
    session.write("tools.py", "def clean(): pass\n")
    session.open("b.py", "clean = shown\n")
    session.open("main.py", "from tools import clean\n")
    session.open("c.py", "clean = edited\n")
    session.edit("c.py", 0, "clean = 1\n")
    session.edit("main.py", 0, "\n")
    assert len(session.extra("main.py").chunks) == 4
    session.exclude = ExcludeSettings(patterns=("b.py", "c.py", "tools.py"))
    assert session.extra("main.py") is NO_SNIPPETS
    session.exclude = ExcludeSettings(languages=("python",))
    assert session.extra("main.py") is NO_SNIPPETS


def test_what_is_no_text_or_too_long_is_no_context(session):
    session.exclude = ExcludeSettings(max_file_chars=40)
    session.open("b.py", "total = price\n" + "#" * 100)
    session.open("c.py", "total = price\0")
    session.open("main.py", "total = price\n")
    assert session.extra("main.py") is NO_SNIPPETS


def test_a_file_that_cannot_be_read_is_no_context(session):
    (session.root / "tools.py").write_bytes(b"def clean(): '\xff'\n")
    (session.root / "folder.py").mkdir()
    session.open("main.py", "from tools import clean\nimport folder\nfolder.x\n")
    assert session.extra("main.py") is NO_SNIPPETS


def test_other_documents_have_lines_of_their_own(session):
    session.open("b.py", "total:\r\n\tprice = amount\r\n")
    session.open("main.py", "total = price\n")
    assert session.chunks("main.py") == [(SnippetSource.OPEN_FILES, "total:\n    price = amount\n")]


def test_a_path_is_one_line_whatever_a_file_is_called(session):
    session.open("a\nimport os # .py", "total = price\n")
    session.open("main.py", "total = price\n")
    [chunk] = session.extra("main.py").chunks
    assert chunk.path.endswith("/a import os # .py")


def test_a_document_without_a_path_is_as_good_as_any(session):
    session.open("b.py", "total = price\n")
    snapshot = replace(session.documents.get(session.uri("b.py")).snapshot(), uri="untitled:Untitled-1")
    extra = session.elsewhere.extra(snapshot, 0, SETTINGS)
    assert [one.source for one in extra.chunks] == [SnippetSource.OPEN_FILES]
