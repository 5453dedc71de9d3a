"""Requests of editor plugins, and readers that parse responses as each plugin does."""

import itertools
import json
import re
import tomllib
from operator import itemgetter
from pathlib import Path

HEADERS = {"Accept": "application/json", "Authorization": "Bearer x", "Content-Type": "application/json"}


def continue_(reply, pick):
    """Continue: `data:` lines up to `[DONE]`; an `error` is raised, and its own cancellation is silent."""
    if reply.status == 499:
        return ""
    assert reply.status == 200, reply.body
    text = ""
    for line in reply.body.decode().split("\n"):
        if line.startswith(("data:[DONE]", "data: [DONE]")):
            break
        if line.startswith("data:"):
            data = json.loads(line.removeprefix("data: ").removeprefix("data:"))
            assert not data.get("error"), data
            if data["choices"]:
                text += pick(data["choices"][0]) or ""
    return text


def minuet(reply, pick):
    """minuet, streamed: every line whose JSON has a text; other lines are skipped."""
    texts = []
    for line in reply.body.decode().split("\n"):
        try:
            text = pick(json.loads(line.removeprefix("data:"))["choices"][0])
        except (ValueError, KeyError, IndexError):
            continue
        if isinstance(text, str) and text:
            texts.append(text)
    return "".join(texts) or None


def whole(reply, pick):
    """One JSON document; an empty text is no completion."""
    return pick(json.loads(reply.body)["choices"][0]) or None


def tabby_server(reply, pick):
    """Tabby's server: JSON events up to a finish reason; it crashes at `[DONE]`."""
    text = ""
    for event in reply.body.decode().split("\n\n"):
        choice = json.loads(event.removeprefix("data: "))["choices"][0]
        text += pick(choice)
        if choice["finish_reason"]:
            return text
    raise AssertionError("the stream has no finish reason")


def delta(choice):
    assert isinstance(choice["delta"]["content"], str)  # a missing one ends Tabby's server
    return choice["delta"]["content"]


PARTS = {"text": itemgetter("text"), "delta": delta, "message": lambda choice: choice["message"]["content"]}


def llama_vim(reply, _pick=None):
    """llama.vim: one line, and `"content":"` without a blank after the colon; else None."""
    text = reply.body.decode()
    if "\n" in text or text.startswith("[") or not re.search(r'"content"\s*:"', text):
        return None
    tree = json.loads(text)
    # its status line shows six of them
    names = itertools.product(("prompt", "predicted"), ("n", "ms", "per_second"))
    assert {f"timings/{kind}_{unit}" for kind, unit in names} <= {*tree}
    assert isinstance(tree["tokens_cached"], int)
    return tree["content"]


def llama_vscode(reply, _pick=None):
    """llama.vscode: an object, or an array whose first content is shown."""
    tree = json.loads(reply.body)
    first = tree[0] if isinstance(tree, list) else tree
    assert {"predicted_n", "predicted_ms", "prompt_n", "prompt_ms"} <= {*first["timings"]}
    assert isinstance(first["tokens_cached"], int)
    return first["content"]


def zed(reply, _pick=None):
    """Zed: one JSON document with an id."""
    tree = json.loads(reply.body)
    assert tree["id"]
    return tree["choices"][0]["text"]


def mercury(reply, _pick=None):
    """Cursortab and Zed: the text in the fence; `None` is no prediction."""
    content = json.loads(reply.body)["choices"][0]["message"]["content"]
    return None if content == "None" else content.removeprefix("```\n").removesuffix("\n```")


def requests(group):
    """Path, body, reader, and the part of a choice that the plugin reads, by the names of `plugins.toml`."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[group]
    return {
        table["name"]: (table["path"], table["body"].encode(), globals()[table["reader"]], PARTS.get(table.get("part")))
        for table in tables
    }


FILLS = requests("fill")
CHATS = requests("chat")
