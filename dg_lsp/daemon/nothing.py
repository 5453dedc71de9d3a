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


def answer_of(message: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request: nothing, where the protocol has a nothing for it, else an error."""
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if is_asked_for(message):
        return {**answer, "result": {"applied": False, "reason": WHY}}
    method = str(message.get("method"))
    if method in _RESULTS:
        return {**answer, "result": _RESULTS[method]}
    return {**answer, "error": {"code": _REQUEST_FAILED, "message": WHY}}
