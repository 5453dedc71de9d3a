import pytest

from dg_lsp.context.syntax_tree import Inside, inside

COMMENTS = [
    ("python", "# hi¦\nx = 1"),
    ("javascript", "// don't ¦\nlet a = 'b'"),
    ("javascript", "/* a ¦ */ let b"),
    ("go", "package a\n// hi ¦\nfunc x() {}"),
    ("rust", "/// doc ¦\nfn a() {}"),
    ("html", "<!-- a¦ -->"),
]
STRINGS = [
    ("python", "x = 'a¦b'"),
    ("python", "x = 'not closed¦"),
    ("python", 'def f():\n    """doc¦'),
    ("javascript", "const a = `x¦ ${b} y`;"),
    ("javascript", "const a = 'not closed¦;\nlet b = 1;"),
    ("json", '{"a": "b¦"}'),
    ("yaml", "a: 'bc¦d'"),
]
CODE = [
    ("python", "x = 'é'¦"),
    ("python", "x = f'a{b¦}'"),
    ("python", "'''a'''\nx = foo(¦)\n'''b'''"),
    ("python", "# hi\n¦x"),
    ("javascript", "const a = `x ${b¦} y`;"),
    ("javascript", "/* a */¦ let b"),
    ("shellscript", 'echo "$(ls ¦)"'),
    ("typescript", "type A = { a: string¦; }"),
    ("yaml", "a: bc¦d"),
    ("plaintext", "'a¦'"),
]


@pytest.mark.parametrize(
    ("language", "text", "found"),
    [
        *((*case, (Inside.COMMENT,)) for case in COMMENTS),
        *((*case, (Inside.STRING,)) for case in STRINGS),
        *((*case, (None, Inside.CODE_IN_STRING)) for case in CODE),
    ],
)
def test_comments_and_strings_are_found_by_the_grammar_also_where_they_are_not_closed(language, text, found):
    before, _, after = text.partition("¦")
    assert inside(before + after, len(before), language) in found
