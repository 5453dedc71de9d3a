"""Code from elsewhere that a client sends along, as far as the settings have the model see it."""

from dataclasses import replace
from urllib.parse import quote

from dg_lsp.canvas.fim import takes_extra
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.context.snippets import Snippet, Snippets
from dg_lsp.context.window import PATH_PARTS
from dg_lsp.engine.request import FillRequest
from dg_lsp.http.asked import Asked
from dg_lsp.settings import Settings

NO_NAME = "snippet"


def with_extra(asked: Asked, spec: ModelSpec, settings: Settings) -> FillRequest:
    """The request as the engine takes it. Chunks of excluded files are left out, whoever sent them."""
    request = asked.request()
    if not asked.chunks or not takes_extra(spec, settings.context.when):
        return request
    exclusion = Exclusion(settings.exclude)
    chunks = []
    for chunk in asked.chunks:
        path = chunk.path.replace("\\", "/")
        uri = f"file:///{quote(path.lstrip('/'), errors='replace')}"
        if exclusion.reason(Snapshot(uri, 0, chunk.text, asked.language)) is None:
            chunks.append(Snippet(chunk.source, _shown(path), chunk.text))
    return replace(request, extra=Snippets(tuple(chunks), settings.context.share))


def _shown(path: str) -> str:
    """Its last parts, on one line."""
    return " ".join("/".join(path.split("/")[-PATH_PARTS:]).split()) or NO_NAME
