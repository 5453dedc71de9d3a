"""Fills of every language where an editor has closed what they close again: rests of lines, lines and blocks."""

import pytest

from dg_lsp.postprocess.validate import Candidate

from .conftest import judged

CASES = {
    "python": (
        ("print(len(¦))\n", "names))", "names"),
        ("def f():\n    return g(\n        ¦\n    )\n", "a, b\n    )", "a, b"),
        ("class A:\n    def f(self):\n        ¦\n\nx = 1\n", "return 1\n\nx = 1", "return 1"),
    ),
    "javascript": (
        ("const s = `a ${¦}`;\n", "b}`;", "b"),
        ("call({\n  ¦\n});\n", "a: 1,\n});", "a: 1,"),
        ("function f() {\n  ¦\n}\n", "if (a) {\n    b();\n  }\n}\n\nfunction g() {", "if (a) {\n    b();\n  }"),
    ),
    "typescript": (
        ("const a: Map<string, number[]> = new Map([¦]);\n", '["b", [1]]]);', '["b", [1]]'),
        ("interface A {\n  ¦\n}\n", "b: string;\n}", "b: string;"),
        ("class A {\n  f(): void {\n    ¦\n  }\n}\n", "g();\n    h();\n  }\n}", "g();\n    h();"),
    ),
    "typescriptreact": (
        ("const a = <b className={¦}>c</b>;\n", "d}>c</b>;", "d"),
        ("const a = (\n  <ul>\n    ¦\n  </ul>\n);\n", "<li>{b}</li>\n  </ul>", "<li>{b}</li>"),
        ("function A() {\n  ¦\n}\n", "const b = 1;\n  return <c>{b}</c>;\n}", "const b = 1;\n  return <c>{b}</c>;"),
    ),
    "go": (
        ('fmt.Println("¦")\n', 'a")', "a"),
        ("x := []int{\n    ¦\n}\n", "1,\n}", "1,"),
        ("package a\n\nfunc f() {\n    ¦\n}\n", "if b {\n        c()\n    }\n}", "if b {\n        c()\n    }"),
    ),
    "rust": (
        ("let a = vec![¦];\n", "1, 2];", "1, 2"),
        ("struct A {\n    ¦\n}\n", "b: u8,\n}", "b: u8,"),
        ("impl A {\n    fn f(&self) {\n        ¦\n    }\n}\n", "g();\n        h();\n    }\n}", "g();\n        h();"),
    ),
    "java": (
        ("int a = f(g(¦));\n", "b));", "b"),
        ("enum A {\n    ¦\n}\n", "B,\n}", "B,"),
        (
            "class A {\n    int f() {\n        ¦\n    }\n}\n",
            "g();\n        return 1;\n    }\n}",
            "g();\n        return 1;",
        ),
    ),
    "kotlin": (
        ("val a = listOf(¦)\n", "1, 2)", "1, 2"),
        ("val a = mapOf(\n    ¦\n)\n", '"b" to 1,\n)', '"b" to 1,'),
        ("class A {\n    fun f() {\n        ¦\n    }\n}\n", "g()\n        h()\n    }\n}", "g()\n        h()"),
    ),
    "c": (
        ("int a[] = {¦};\n", "1, 2};", "1, 2"),
        ("struct a {\n    ¦\n};\n", "int b;\n};", "int b;"),
        ("int f(void)\n{\n    ¦\n}\n", "g();\n    return 1;\n}", "g();\n    return 1;"),
    ),
    "cpp": (
        ("std::vector<int> a{¦};\n", "1, 2};", "1, 2"),
        ("class A {\n  ¦\n};\n", "int b;\n};", "int b;"),
        ("namespace a {\nint f() {\n  ¦\n}\n}\n", "g();\n  return 1;\n}\n}", "g();\n  return 1;"),
    ),
    "csharp": (
        ('Console.WriteLine($"{¦}");\n', 'a}");', "a"),
        ("var a = new[]\n{\n    ¦\n};\n", "1,\n};", "1,"),
        (
            "class A\n{\n    int F()\n    {\n        ¦\n    }\n}\n",
            "G();\n        return 1;\n    }\n}",
            "G();\n        return 1;",
        ),
    ),
    "ruby": (
        ("puts [¦].join\n", "1, 2].join", "1, 2"),
        ("def f\n  ¦\nend\n", "g(1)\nend", "g(1)"),
        ("class A\n  def f\n    ¦\n  end\nend\n", "g\n    h\n  end\nend", "g\n    h"),
    ),
    "php": (
        ("$a = [¦];\n", "'b' => 1];", "'b' => 1"),
        ("$a = array(\n    ¦\n);\n", "'b' => 1,\n);", "'b' => 1,"),
        (
            "class A\n{\n    function f()\n    {\n        ¦\n    }\n}\n",
            "g();\n        h();\n    }\n}",
            "g();\n        h();",
        ),
    ),
    "lua": (
        ("local a = f({¦})\n", "1, 2})", "1, 2"),
        ("local t = {\n  ¦\n}\n", "a = 1,\n}", "a = 1,"),
        ("function f()\n  ¦\nend\n", "if a then\n    b()\n  end\nend", "if a then\n    b()\n  end"),
    ),
    "shellscript": (
        ('echo "${a[¦]}"\n', '0]}"', "0"),
        ("for a in b; do\n  ¦\ndone\n", "c\ndone", "c"),
        ("f() {\n  ¦\n}\n", "if a; then\n    b\n  fi\n}", "if a; then\n    b\n  fi"),
    ),
    "sql": (
        ("SELECT f(¦) FROM t;\n", "x) FROM t;", "x"),
        ("CREATE TABLE a (\n    ¦\n);\n", "b INTEGER\n);", "b INTEGER"),
        (
            "INSERT INTO a (b, c) VALUES\n    ¦\nON CONFLICT DO NOTHING;\n",
            "(1, 2),\n    (3, 4)\nON CONFLICT DO NOTHING;",
            "(1, 2),\n    (3, 4)",
        ),
    ),
    "json": (
        ('{"a": {¦}}\n', '"b": 1}}', '"b": 1'),
        ('{\n  "a": [\n    ¦\n  ]\n}\n', "1\n  ]", "1"),
        ("{\n  ¦\n}\n", '"a": {\n    "b": 1\n  }\n}', '"a": {\n    "b": 1\n  }'),
    ),
    "yaml": (
        ("a: [¦]\n", "1, 2]", "1, 2"),
        ("a:\n  ¦\nb: 1\n", "c: 2\nb: 1", "c: 2"),
        ("jobs:\n  a:\n    ¦\n", "run: b\n    env:\n      c: d\n  e:\n    run: f", "run: b\n    env:\n      c: d"),
    ),
    "toml": (
        ("a = { ¦ }\n", "b = 1 }", "b = 1"),
        ("a = [\n  ¦\n]\n", "1,\n]", "1,"),
        ("[a]\n¦\n\n[b]\nc = 1\n", "d = 1\ne = 2\n\n[b]\nc = 1", "d = 1\ne = 2"),
    ),
    "html": (
        ('<a href="¦">x</a>\n', '#top">x</a>', "#top"),
        ("<ul>\n  ¦\n</ul>\n", "<li>a</li>\n</ul>", "<li>a</li>"),
        ("<div>\n  ¦\n</div>\n", "<p>\n    a\n  </p>\n</div>", "<p>\n    a\n  </p>"),
    ),
    "css": (
        ("a { color: rgb(¦); }\n", "0, 0, 0); }", "0, 0, 0"),
        ("a {\n  ¦\n}\n", "color: red;\n}", "color: red;"),
        ("@media print {\n  ¦\n}\n", "a {\n    color: red;\n  }\n}\n\nb {", "a {\n    color: red;\n  }"),
    ),
    "markdown": (
        ("See [the page](¦).\n", "page.md).", "page.md"),
        ("| a | b |\n|---|---|\n¦\n| 3 | 4 |\n", "| 1 | 2 |\n| 3 | 4 |", "| 1 | 2 |"),
        ("```sh\n¦\n```\n", "make\nmake test\n```", "make\nmake test"),
    ),
}


@pytest.mark.parametrize("kind", range(3), ids=["rest of a line", "whole line", "block"])
@pytest.mark.parametrize("language", CASES)
def test_a_fill_ends_where_the_text_behind_it_begins(language, kind):
    marked, fill, expected = CASES[language][kind]
    assert judged(marked, fill, language) == Candidate(expected, -0.5)
