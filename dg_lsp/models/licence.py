"""The text of a licence that comes as a web page."""

import re
from html.parser import HTMLParser

_HIDDEN = {"script", "style", "head", "nav", "button", "template", "svg"}
_BLOCKS = {"p", "div", "li", "ul", "ol", "h1", "h2", "h3", "h4", "br", "tr", "section", "article"}


def plain_text(page: str) -> str:
    """What the page's article says, one paragraph a line; the whole page where it has no article."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    paragraphs = (re.sub(r"\s+", " ", line).strip() for line in "".join(reader.article or reader.text).split("\f"))
    return "\n".join(line for line in paragraphs if line)


class _Reader(HTMLParser):
    """Collects text; a form feed stands where a block begins or ends."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.article: list[str] = []
        self._hidden = 0
        self._articles = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self._hidden += tag in _HIDDEN
        self._articles += tag == "article"
        self._add("\f" if tag in _BLOCKS else "")

    def handle_endtag(self, tag: str) -> None:
        self._add("\f" if tag in _BLOCKS else "")
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        self._articles -= tag == "article" and self._articles > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._add(data)

    def _add(self, text: str) -> None:
        self.text.append(text)
        if self._articles:
            self.article.append(text)
