"""A hook of mkdocs: links from a page to a file outside docs/ lead to the repository."""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page with absolute links in place of those that leave docs/."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def absolute(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        return match[0] if path.startswith("docs/") else f"]({config.repo_url}/blob/main/{path}"

    return _LINK.sub(absolute, markdown)
