"""What may be asked, as JSON Schema: the bodies of requests."""

from dg_lsp.http.asked import MAX_CANDIDATES
from dg_lsp.http.fields import MOST_OBJECTS
from dg_lsp.http.shapes import MOST, Schema, array, asked, flag, integer, number, one_of, text
from dg_lsp.http.tabby import KNOWN_ACTIONS, NEXT_EDIT, STANDARD

_TEXTS: Schema = {"type": ["string", "array", "null"], "items": {"type": "string"}}
_ONE_TEXT: Schema = {**_TEXTS, "maxItems": 1, "description": "What stands before the gap."}
_USAGE_TOO: Schema = {"type": ["object", "null"], "properties": {"include_usage": {"type": ["boolean", "null"]}}}
_DIFFUSING = flag("With stream: every chunk is a whole draft that takes the place of the one before it.")
_SHARED: Schema = {
    "seed": integer(-(2**63), 2**63, "The same seed on the same text gives the same answer; negative is any."),
    "stop": _TEXTS,
    "stream": flag("Server-sent events."),
    "t_max_predict_ms": number("Milliseconds from arrival after which what is settled is shown."),
}
_CHUNK = asked({"text": {"type": "string"}, "filename": text()}, "text")
INFILL = asked(
    {
        **_SHARED,
        "input_prefix": text("Lines above the cursor's."),
        "prompt": text("The cursor's line up to the cursor."),
        "input_suffix": text("All after the cursor."),
        "input_extra": {"type": ["array", "null"], "items": _CHUNK, "maxItems": MOST_OBJECTS},
        "n_predict": integer(-2, MOST, "Tokens; 0 only readies the cache."),
        "n_cmpl": integer(1, MAX_CANDIDATES, "Above 1 the answer is an array."),
        "n_indent": integer(0, MOST, "Blanks that later lines must begin with."),
        "response_fields": _TEXTS,
    }
)
_GAP: Schema = {
    **_SHARED,
    "prompt": _ONE_TEXT,
    "suffix": text("What stands after it."),
    "language": text("LSP language id."),
    "max_tokens": integer(-1, MOST),
    "n": integer(1, MAX_CANDIDATES),
    "stream_options": _USAGE_TOO,
    "diffusing": _DIFFUSING,
}
FIM = asked(_GAP)
_SEGMENTS = asked({"prefix": text(), "suffix": text(), "filepath": text()})
_TABBYS: Schema = {
    "language": text("LSP language id."),
    "user": text("With segments.filepath: a newer request takes the older one's place."),
    "mode": one_of(STANDARD, NEXT_EDIT, None),
    "seed": _SHARED["seed"],
}
COMPLETION: Schema = {
    "anyOf": [
        asked({**_GAP, **_TABBYS, "segments": {"type": "null"}}),
        asked({**_TABBYS, "segments": _SEGMENTS}, "segments"),
    ]
}
_PART = asked({"type": one_of("text", None), "text": text()})
_MESSAGE = asked(
    {
        "role": one_of("system", "developer", "user", "assistant"),
        "content": {"type": ["string", "array", "null"], "items": _PART, "maxItems": MOST_OBJECTS},
    },
    "role",
)
_MESSAGES = array(_MESSAGE, minItems=1, maxItems=MOST_OBJECTS)
CHAT = asked(
    {
        **_SHARED,
        "messages": _MESSAGES,
        "max_tokens": integer(1, MOST),
        "max_completion_tokens": integer(1, MOST),
        "n": integer(1, 1),
        "stream_options": _USAGE_TOO,
        "diffusing": _DIFFUSING,
    },
    "messages",
)
EDIT = asked({"messages": _MESSAGES, "max_tokens": integer(0, 4096), "stream": flag("Server-sent events.")}, "messages")
_ACTION = one_of(*KNOWN_ACTIONS)
EVENT = asked({"type": _ACTION}, "type")
FEEDBACK = asked({"user_action": _ACTION}, "user_action")
