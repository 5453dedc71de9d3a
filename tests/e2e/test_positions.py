"""The text of the buffer and the position of completions; the echo engine returns its request as JSON."""

import json
import re

import pytest

LINE_END = re.compile(r"\r\n|\n|\r")


@pytest.fixture(params=["utf-8", "utf-16", "utf-32"], scope="module")
def client(request, module_launcher):
    client = module_launcher.scripted("echo")
    client.handshake({"general": {"positionEncodings": [request.param]}})
    assert client.encoding == request.param
    yield client
    client.check()


def position_of(client, text, offset):
    """The position of an offset, by splitting the text before it."""
    lines = LINE_END.split(text[:offset])
    return {"line": len(lines) - 1, "character": client.units(lines[-1])}


@pytest.mark.parametrize(
    ("text", "line", "character", "offset"),
    [
        pytest.param("", 0, 0, 0, id="empty file"),
        pytest.param("a\r\nb", 0, 2, 1, id="inside CRLF"),
        pytest.param("# é😋\nx = 1\n", 0, {"utf-8": 8, "utf-16": 5, "utf-32": 4}, 4, id="after an emoji"),
        pytest.param("😋", 0, {"utf-8": 3, "utf-16": 1, "utf-32": 0}, 0, id="inside a character"),
    ],
)
def test_positions_are_converted(client, text, line, character, offset):
    client.open(text)
    if isinstance(character, dict):
        character = character[client.encoding]
    [item] = client.items(client.complete(line, character))
    assert json.loads(item["insertText"]) | {"text": text, "offset": offset} == json.loads(item["insertText"])
    at = position_of(client, text, offset)
    assert item["range"] == {"start": at, "end": at}


def test_the_popups_selected_item_is_part_of_the_completion(client):
    """`é = pri`, the popup has `print` selected: the completion continues it, and replaces the same range."""
    client.open("é = pri\n")
    start, end = position_of(client, "é = ", 4), position_of(client, "é = pri", 7)
    selected = {"range": {"start": start, "end": end}, "text": "print"}
    [item] = client.items(client.complete(**end, selectedCompletionInfo=selected))
    assert item["insertText"].startswith("print{")
    assert item["range"] == {"start": start, "end": end}
    assert '"text": "\\u00e9 = print\\n", "offset": 9' in item["insertText"]
