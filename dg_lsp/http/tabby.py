"""Tabby's clients: `POST /v1/completions` with `segments`, and `POST /v1/events` for what came of it."""

import uuid

from starlette.requests import Request
from starlette.responses import Response

from dg_lsp.http.asked import DEFAULT_LANGUAGE, Asked, choices_of, seed_of
from dg_lsp.http.fields import Fields
from dg_lsp.http.refusal import Refusal
from dg_lsp.http.service import Service
from dg_lsp.http.wire import answer

STANDARD, NEXT_EDIT = "standard", "next_edit_suggestion"


def tabbys(fields: Fields) -> Asked | None:
    """The gap between two segments, or None where the request has none.

    Raises:
        Refusal: a field is wrong, or next edits are asked for.
    """
    mode, user, segments = fields.text("mode", STANDARD), fields.text("user"), fields.object("segments")
    if mode == NEXT_EDIT:
        raise Refusal(501, f"next edits are not suggested; ask for mode {STANDARD}", field="mode")
    if mode != STANDARD:
        fields.refuse("mode", f"expected {STANDARD}")
    if segments is None:
        return None
    path = segments.text("filepath")
    return Asked(
        prefix=segments.text("prefix"),
        suffix=segments.text("suffix"),
        language=fields.text("language") or DEFAULT_LANGUAGE,
        path=path,
        # without a user, files of the same name may be two people's
        client=user if path else "",
        seed=seed_of(fields),
    )


async def tabby(asked: Asked, request: Request) -> Response:
    """The best fill of the gap."""
    service: Service = request.app.state.service
    result = await service.fill(asked, request)
    choices = [{"index": number, "text": choice.text} for number, choice in enumerate(choices_of(asked, result))]
    return answer({"id": f"cmpl-{uuid.uuid4().hex}", "choices": choices, "mode": STANDARD})


async def feedback(request: Request) -> Response:
    """Counts what a user did with what was shown; Tabby says it as `type`, Cursortab as `user_action`."""
    service: Service = request.app.state.service
    fields = await service.read(request)
    action = fields.text("user_action") or fields.text("type")
    if action not in KNOWN_ACTIONS:
        name = "type" if "type" in fields else "user_action"
        fields.refuse(name, f"expected one of {', '.join(KNOWN_ACTIONS)}")
    service.counts.feedback.add(1, action)
    return answer({"status": "ok"})


KNOWN_ACTIONS = ("accept", "reject", "ignore", "view", "select", "dismiss")
"""Each is a label of a metric, so there must not be more of them than these."""
