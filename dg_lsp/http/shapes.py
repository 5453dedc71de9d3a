"""JSON Schema in few words: what fields of requests and answers may be. null counts as absent in requests only."""

from typing import Any

Schema = dict[str, Any]

MOST = 2**31
WORDS: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
AMOUNT: Schema = {"type": "number", "minimum": 0}
YES_OR_NO: Schema = {"type": "boolean"}


def text(sentence: str = "") -> Schema:
    """A string of a request."""
    return {"type": ["string", "null"], **({"description": sentence} if sentence else {})}


def flag(sentence: str) -> Schema:
    """true or false of a request."""
    return {"type": ["boolean", "null"], "description": sentence}


def integer(least: int, most: int, sentence: str = "") -> Schema:
    """A whole number of a request."""
    return {"type": ["integer", "null"], "minimum": least, "maximum": most, "description": sentence}


def number(sentence: str) -> Schema:
    """A number of a request."""
    return {"type": ["number", "null"], "description": sentence}


def asked(properties: Schema, *required: str) -> Schema:
    """A request's object; fields that it does not name are nobody's business."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def said(**properties: Schema) -> Schema:
    """An answer's object, which has all of these fields."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def array(of: Schema, **bounds: int) -> Schema:
    """An array."""
    return {"type": "array", "items": of, **bounds}


def one_of(*values: str | None) -> Schema:
    """One of these words; None is null."""
    return {"enum": list(values)}


def named(name: str) -> Schema:
    """A schema that the document's components hold."""
    return {"$ref": f"#/components/schemas/{name}"}
