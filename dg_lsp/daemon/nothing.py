"""What an editor hears while there is no server. Light: a relay imports it."""

from typing import Any

WHY = "the model's process ended; it is being started again"
_REQUEST_FAILED = -32803
_RESULTS: dict[str, Any] = {
    "textDocument/inlineCompletion": {"items": []},
    "textDocument/copilotInlineEdit": {"edits": []},
    "textDocument/codeAction": None,
    "shutdown": None,
}
_COMMANDS = ("dg-lsp.rewrite", "dg-lsp.completeBlock")


def is_asked_for(message: dict[str, Any]) -> bool:
    """A person waits for it, and is told why nothing comes."""
    params = message.get("params")
    if message.get("method") != "workspace/executeCommand" or not isinstance(params, dict):
        return False
    return params.get("command") in _COMMANDS


def answer_of(message: dict[str, Any], why: str = WHY) -> dict[str, Any]:
    """The answer to a request: nothing, where the protocol has a nothing for it, else an error."""
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if is_asked_for(message):
        return {**answer, "result": {"applied": False, "reason": why}}
    method = str(message.get("method"))
    if method in _RESULTS:
        return {**answer, "result": _RESULTS[method]}
    return {**answer, "error": {"code": _REQUEST_FAILED, "message": why}}


def status_of(why: str, *, is_resting: bool) -> dict[str, Any]:
    """What a status bar shows; a relay that rests is not even looking for a server."""
    name, kind = ("error", "Error") if is_resting else ("loading", "Warning")
    state = {"state": name, "model": "", "lastMs": None, "shown": 0, "accepted": 0}
    return {"busy": not is_resting, "message": why, "kind": kind, "dgLsp": state}
