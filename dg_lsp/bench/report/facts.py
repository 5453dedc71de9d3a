"""Where and how it was measured, as pairs of a name and a value."""

from collections.abc import Iterator, Mapping

from dg_lsp.bench.report.markup import Html, element


def facts(tree: Mapping[str, object]) -> Html:
    """Nested mappings become dotted names; what is not known or empty is left out."""
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in _flat(tree, "")]
    return element("dl", *pairs) if pairs else element("p", "None.")


def _flat(tree: Mapping[str, object], before: str) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        elif value is not None and value not in ("", [], ()):
            yield f"{before}{key}", _text(value)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
