"""Snippets for a completion, and files that never become snippets."""

import pytest

from dg_lsp.context.window import MAX_LINE, NO_SNIPPETS, SnippetSource
from dg_lsp.server.context_provider import MAX_EDITS, NEAR_LINES, READY_LINES
from dg_lsp.settings import PrivacySettings

from .conftest import Editor

SECRET = "hunter2"
PROMPT_CHARS = 1_000_000
"""A prompt with so many characters shows all of the file itself."""


class Workspace(Editor):
    """An editor with files of one folder, by name."""

    def __init__(self, root):
        super().__init__()
        self.root = root
        self.exclusion.set_folders([root.as_uri()])

    def uri(self, name):
        return (self.root / name).as_uri()

    def open(self, name, text):
        super().open(text, self.uri(name))

    def close(self, name):
        super().close(self.uri(name))

    def type(self, name, text, line=0):
        """Inserts a text at the start of a line."""
        start, _ = self.documents.get(self.uri(name)).lines.span(line)
        self.edit((start, start, text), uri=self.uri(name))

    def snippets(self, offset=None, num_chars=PROMPT_CHARS):
        """Those for an offset or the end of `main.py`."""
        snapshot = self.documents.get(self.uri("main.py")).snapshot()
        offset = len(snapshot.text) if offset is None else offset
        return self.server.context_provider.snippets(snapshot, offset, num_chars)

    def chunks(self, source):
        return [snippet.text for snippet in self.snippets().chunks if snippet.source is source]


@pytest.fixture
def session(tmp_path):
    return Workspace(tmp_path)


def test_the_most_similar_part_of_each_open_file_is_shown(session):
    filler = "\n".join(f"other_{number} = {number}" for number in range(60))
    session.open("far.py", filler + "\ntotal = price * amount + tax\n" + filler)
    session.open("near.py", "price = amount = tax = total = 0\n")
    session.open("main.py", "def bill(price, amount, tax):\n    total = ")
    [first] = session.chunks(SnippetSource.SIMILAR)
    [second] = session.chunks(SnippetSource.OPEN_FILES)
    assert first == "price = amount = tax = total = 0\n"
    assert "total = price * amount + tax" in second


def test_the_similar_code_that_the_prompt_does_not_show_is_of_the_own_file_too(session):
    filler = "".join(f"other_{number} = {number}\n" for number in range(200))
    text = f"def order(price, tax):\n    return price * tax\n{filler}def bill(price, tax):\n    return "
    session.open("main.py", text)
    session.open("near.py", "total = 0\n" * 20)
    assert session.snippets(offset=0) is NO_SNIPPETS
    first, *further = session.snippets(num_chars=400).chunks
    assert first.path.endswith("main.py")
    assert "return price * tax" in first.text
    assert all("def bill" not in chunk.text for chunk in further)


def test_words_that_all_code_has_choose_no_code(session):
    common = "import os\nfrom typing import Any\n\nclass Base:\n    def run(self) -> None:\n        return self\n"
    session.open("common.py", common * 8)
    session.open("rare.py", common + "        self.invoice.settle()\n")
    session.open("main.py", common + "        return self.invoice.")
    [text] = session.chunks(SnippetSource.SIMILAR)
    assert text.endswith("self.invoice.settle()\n")


def test_a_prompt_names_the_folder_of_its_file_alone(session):
    session.exclusion.set_folders([(session.root / name).as_uri() for name in ("first", "second")])
    session.open("second/near.py", "price = amount = tax = total = 0\n")
    for name, repository in (("second/main.py", "second"), ("main.py", "")):
        session.open(name, "def bill(price, amount, tax):\n    total = ")
        snapshot = session.documents.get(session.uri(name)).snapshot()
        snippets = session.server.context_provider.snippets(snapshot, len(snapshot.text), PROMPT_CHARS)
        assert snippets.repository == repository


def test_an_earlier_edit_at_another_position_is_shown(session):
    session.open("a.py", "\n".join(f"a_{number} = 0" for number in range(100)))
    session.open("main.py", "x = 1\n")
    session.type("a.py", "changed = 1\n", line=50)
    assert session.chunks(SnippetSource.EDITS) == []
    session.type("main.py", "y = 2\n")
    [text] = session.chunks(SnippetSource.EDITS)
    assert "changed = 1" in text
    assert text.count("\n") == 16
    session.close("a.py")
    assert len(session.chunks(SnippetSource.EDITS)) == 1


def test_of_many_edits_the_newest_are_shown_and_of_one_place_the_last(session):
    session.open("main.py", "x = 1\n")
    for number in [*range(MAX_EDITS + 2), MAX_EDITS + 1]:
        session.open(f"{number}.py", f"old_{number}\n")
        session.type(f"{number}.py", f"edited_{number}\n")
    session.type("main.py", "y = 2\n")
    edits = session.chunks(SnippetSource.EDITS)
    assert [text.split("\n")[0] for text in edits] == [f"edited_{number}" for number in range(MAX_EDITS + 1, 1, -1)]


def test_the_edit_at_the_cursor_is_not_shown(session):
    session.open("main.py", "def handled(event):\n    return event\n")
    session.type("main.py", "    log(event)\n", line=1)
    assert session.snippets() is NO_SNIPPETS


def test_snippets_stay_the_same_while_the_user_types(session):
    session.open("b.py", "def shown(text): return text\n")
    session.open("main.py", "def run(text):\n    ")
    first = session.snippets()
    assert len(first.chunks) == 1
    for number, char in enumerate("return clean(shown(text))\n"):
        session.open("main.py", session.text(session.uri("main.py")) + char)
        assert session.snippets() == first, number


def test_the_snippets_of_a_cursor_that_goes_on_are_known_some_lines_before(session):
    session.open("b.py", "price = amount\n" + "\n" * 40 + "volume = pressure\n")
    session.open("main.py", "price = amount\n" * 3 + "\n" * 2000 + "volume = pressure\n" * 40)
    last = len(session.text(session.uri("main.py")))
    lines = [session.snippets(offset=last - 18 * (40 - line)) for line in range(NEAR_LINES + 2)]
    before, after = lines[-2:]
    assert [snippets.following is None for snippets in lines] == [*[True] * (READY_LINES + 1), *[False] * 4, True]
    assert before.following == after


@pytest.mark.parametrize("name", [".env", "pkg/secrets.toml", "vendored/pkg.py"])
@pytest.mark.parametrize("state", ["open", "edited", "edited and closed"])
def test_text_of_an_excluded_file_is_never_shown(session, name, state):
    session.exclusion.settings = PrivacySettings(exclude_patterns=("vendored/",))
    session.open(name, f"total = price = '{SECRET}'\n")
    session.open("main.py", "total = price\n")
    if state != "open":
        session.type(name, f"key = '{SECRET}'\n")
        session.type("main.py", "\n")
    if state == "edited and closed":
        session.close(name)
    assert session.snippets() is NO_SNIPPETS


@pytest.mark.parametrize("num_shown", [4, 12, 30, 60])
def test_a_token_is_masked_in_snippets_of_all_sources_also_across_the_end_of_what_is_shown(session, num_shown):
    token = "ghp_" + "a1" * 18
    names = "total, price, " * 50
    line = f"{names[: MAX_LINE - num_shown - 1]} '{token}' +"
    session.open("b.py", f"{line}\n")
    session.open("c.py", f"{line}\n")
    session.type("c.py", f"{line}\n")
    session.open("main.py", "total = price\n")
    session.type("main.py", "\n")
    chunks = session.snippets().chunks
    assert [chunk.source for chunk in chunks] == ["similar", "open-files", "edits"]
    assert not any("a1a1" in chunk.text or "ghp_" in chunk.text for chunk in chunks)


def test_a_file_that_is_excluded_later_is_not_shown_any_more(session):
    session.open("b.py", "clean = shown\n")
    session.open("c.py", "clean = edited\n")
    session.type("c.py", "clean = 1\n")
    session.open("main.py", "clean(pth)\n")
    session.type("main.py", "\n")
    assert len(session.snippets().chunks) == 3
    session.exclusion.settings = PrivacySettings(exclude_patterns=("b.py", "c.py"))
    assert session.snippets() is NO_SNIPPETS
    session.exclusion.settings = PrivacySettings(exclude_languages=("python",))
    assert session.snippets() is NO_SNIPPETS
