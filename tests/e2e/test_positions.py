"""The text of the buffer and the position of completions; the echo engine returns its request as JSON."""

import json
import random
import re

import pytest

ENCODINGS = ["utf-8", "utf-16", "utf-32"]
LINE_END = re.compile(r"\r\n|\n|\r")


@pytest.fixture(params=ENCODINGS, scope="module")
def client(request, module_launcher):
    client = module_launcher.scripted("echo")
    client.handshake({"general": {"positionEncodings": [request.param]}})
    assert client.encoding == request.param
    yield client
    assert client.leave() == 0
    client.check()


def position_of(client, text, offset):
    """The position of an offset, by splitting the text before it."""
    lines = LINE_END.split(text[:offset])
    return {"line": len(lines) - 1, "character": client.units(lines[-1])}


def seen(item):
    return json.loads(item["insertText"])


def test_a_completion_after_an_emoji_is_at_the_cursor(client):
    client.open("# é😋\nx = 1\n")
    column = {"utf-8": 8, "utf-16": 5, "utf-32": 4}[client.encoding]
    [item] = client.items(client.complete(0, column))
    position = {"line": 0, "character": column}
    assert item["range"] == {"start": position, "end": position}
    assert seen(item)["offset"] == 4


@pytest.mark.parametrize(
    ("text", "line", "character", "offset"),
    [
        pytest.param("", 0, 0, 0, id="empty file"),
        pytest.param("", 3, 3, 0, id="beyond an empty file"),
        pytest.param("x = ", 0, 4, 4, id="end of a file without newline"),
        pytest.param("x = 1\n", 1, 0, 6, id="after the last newline"),
        pytest.param("x = 1\n", 9, 0, 6, id="line beyond the file"),
        pytest.param("x = 1\ny\n", 0, 99, 5, id="column beyond the line"),
        pytest.param("a\r\nb\r\n", 1, 1, 4, id="CRLF"),
        pytest.param("a\r\nb", 0, 2, 1, id="inside CRLF"),
        pytest.param("a\rb", 1, 1, 3, id="CR"),
        pytest.param("\f\nx = \n", 1, 4, 6, id="form feed"),
        pytest.param("a\u2028b\u0085c\x0b\x1c\nx = \n", 1, 4, 12, id="U+2028 and its kin"),
    ],
)
def test_positions_are_converted(client, text, line, character, offset):
    client.open(text)
    [item] = client.items(client.complete(line, character))
    assert seen(item)["text"] == text
    assert seen(item)["offset"] == offset
    at = position_of(client, text, offset)
    assert item["range"] == {"start": at, "end": at}


@pytest.mark.parametrize("seed", range(3))
def test_random_edits_are_applied(client, seed):
    """Random edits, several in a notification; each end of a range is a valid position."""
    rng = random.Random(seed)
    pieces = ["x", "é", "😋", "\n", "\r\n", "\f", "\u2028", "    ", "def f():\n", "# è", ""]
    text = "".join(rng.choices(pieces, k=30))
    client.open(text)
    for version in range(2, 60):
        changes = []
        for _ in range(rng.randint(1, 3)):
            start, end = sorted(_outside_crlf(text, rng.randint(0, len(text))) for _ in range(2))
            new = "".join(rng.choices(pieces, k=rng.randint(0, 3)))
            changes.append(
                {
                    "range": {"start": position_of(client, text, start), "end": position_of(client, text, end)},
                    "text": new,
                }
            )
            text = text[:start] + new + text[end:]
        client.change(version, *changes)
    offset = _outside_crlf(text, len(text) // 2)
    at = position_of(client, text, offset)
    [item] = client.items(client.complete(at["line"], at["character"]))
    assert seen(item) == seen(item) | {"text": text, "offset": offset, "version": 59}
    assert item["range"] == {"start": at, "end": at}


def _outside_crlf(text, offset):
    return offset - text.startswith("\r\n", max(offset - 1, 0)) * (offset > 0)


def test_changes_of_the_whole_text_and_invalid_ranges(client):
    client.open("first")
    client.change(2, {"text": "abc\ndef\n"})
    backwards = {"start": {"line": 0, "character": 3}, "end": {"line": 0, "character": 1}}
    beyond = {"start": {"line": 7, "character": 7}, "end": {"line": 9, "character": 9}}
    client.change(3, {"range": backwards, "text": "-"}, {"range": beyond, "text": "end"})
    [item] = client.items(client.complete(2, 3))
    assert seen(item)["text"] == "a-\ndef\nend"


def test_lone_surrogates_are_replaced(client):
    """JSON can carry a lone surrogate, UTF-8 cannot."""
    body = json.dumps(
        {
            "jsonrpc": "2.0",
            "method": "textDocument/didOpen",
            "params": {"textDocument": {"uri": client.URI, "languageId": "python", "version": 1, "text": "a\ud83d b"}},
        }
    ).encode()
    client.send_bytes(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    [item] = client.items(client.complete(0, 99))
    assert seen(item)["text"] == "a\ufffd b"


def test_a_document_can_be_closed_and_opened_again(client):
    client.open("one", language="toml")
    [item] = client.items(client.complete(0, 0))
    assert (seen(item)["text"], seen(item)["language"]) == ("one", "toml")
    client.notify("textDocument/didClose", {"textDocument": {"uri": client.URI}})
    assert client.items(client.complete(0, 0)) == []
    assert client.URI in client.wait_log("not open")["message"]
    client.change(2, {"text": "ghost"})
    client.wait_log("change of a document that is not open")
    client.open("two", version=7)
    [item] = client.items(client.complete(0, 0))
    assert (seen(item)["text"], seen(item)["version"]) == ("two", 7)


def test_the_popups_selected_item_is_part_of_the_completion(client):
    """`é = pri`, the popup has `print` selected: the completion continues it, and replaces the same range."""
    client.open("é = pri\n")
    start, end = position_of(client, "é = ", 4), position_of(client, "é = pri", 7)
    selected = {"range": {"start": start, "end": end}, "text": "print"}
    [item] = client.items(client.complete(end["line"], end["character"], selected=selected))
    assert item["insertText"].startswith("print{")
    assert item["range"] == {"start": start, "end": end}
    assert '"text": "\\u00e9 = print\\n", "offset": 9' in item["insertText"]
