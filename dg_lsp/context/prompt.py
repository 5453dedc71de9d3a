"""What the model is shown, still as text."""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from dg_lsp.context.extra import NO_EXTRA, Extra

PATH_PARTS = 3


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text around the cursor as the model likes it: LF line ends, spaces for tabs, cut at line ends."""

    prefix: str
    suffix: str
    instruction: str = ""
    """What is to be done with the selection; a fill has neither."""
    selection: str = ""
    """Between prefix and suffix, to be written anew."""
    path: str = ""
    """As a model may be told; see `shown_path`."""
    language: str = ""
    """LSP language id."""
    extra: Extra = NO_EXTRA
    """Code from elsewhere."""


def shown_path(uri: str) -> str:
    """The last parts of a document's path, on one line: enough to tell what it is, and not where it lies."""
    return " ".join("/".join(unquote(urlsplit(uri).path).split("/")[-PATH_PARTS:]).lstrip("/").split())
