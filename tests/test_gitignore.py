"""Patterns of .gitignore files, compared with `git check-ignore`.

The campaign: `cd tests && python -c "import test_gitignore as it; print(it.differences(100_000, seed=1))"`.
"""

import os
import random
import subprocess
import tempfile
from pathlib import Path

import pytest

from dg_lsp.gitignore import Rule, compiled, is_excluded, path_bytes

PARTS = (
    *("a", "b", "a", "b", "ab", "A", "ü", "é", " ", ".", "#", "!", "-", "]", "~", "$", "(", "|", "\t", "\x0b", "\x85"),
    *("*", "*", "**", "?", "/", "/", "/", "/**/", "**/", "/**", "\\", "\\*", "\\a", "\\ ", "{a,b}", "[", "[[:x:]]"),
    *("[ab]", "[!a]", "[^b]", "[a-c]", "[b-]", "[-a]", "[]a]", "[z-a]", "[\\a-c]", "[a\\]b]", "[a/b]", "[ü]", "[!ü]"),
    *("[[:alpha:]]", "[[:upper:]]", "[[:space:]]", "[[:punct:]]", "[[:]", "[[:alpha:]-z]", "\u2028"),
)
ENDINGS = ("/", " ", "\\ ", "  ", "\r", "/\r", "/**")
NAMES = (
    *("a", "b", "ab", "ba", "c", "aa", "A", "a.b", "*", "-", "]", "[", "a b", "ü", "aü", "é", " ", "#a", "!a", "a]"),
    *("\\", "a\u2028b", "\x85", "~", "$a", "a|b", "x\ty", "^", "{a,b}"),
)


def test_paths_are_ignored_as_git_ignores_them():
    assert differences(600, seed=0) == []


@pytest.mark.parametrize(
    ("line", "ignored", "others"),
    [
        ("[[:alpha:]].py", ["a.py", "x/b.py"], ["1.py", ":.py"]),
        (r"[a\]b].py", ["].py", "a.py"], [r"\.py", "c.py"]),
        ("[a/b].py", ["a.py", "b.py"], ["x/a.py", "/.py"]),
        ("x/a**/b", ["x/ab", "x/a/c/d/b"], ["x/cb", "a/b"]),
        ("?/*", ["a/b/", "a/b"], ["a/", "a"]),
        ("a/**/*", ["a/b/", "a/b/c"], ["a/", "a"]),
        ("??.py", ["ü.py", "ab.py"], ["a.py"]),
        ("a\u2028b", ["a\u2028b"], ["a"]),
        ("x-*-*-*-*.whl", ["x-1-2-3-4.whl", "a/x-1-2-3-4.whl"], ["x-1.whl", "x-1-2-3-4.txt", "y-1-2-3-4.whl"]),
        ("a/**/b/**/c/**/d/**/e", ["a/b/c/d/e", "a/1/b/2/c/3/d/4/e"], ["b/c/d/e", "a/b/c/d"]),
    ],
)
def test_a_pattern_ignores_what_git_ignores(line, ignored, others):
    rules = [Rule(0, pattern) for pattern in compiled((line,))]
    assert [path for path in (*ignored, *others) if is_excluded(path_bytes(path), rules)] == ignored


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a*a*a*a*a*a*a*ab", "a" * 4000),
        ("[!b]*" * 10 + "c", "a" * 4000),
        ("*?" * 10 + "b", "a" * 4000),
        ("**/a/**/a/**/a/**/a/**/b", "a/" * 2000 + "c"),
        ("*" * 100_000 + "b", "a" * 200),
        ("**/a*a*a*/**/a*a*a*/**/a*a*a*b", ("a" * 100 + "/") * 40),
        ("a" + " " * 10_000 + "b", "a" * 200),
    ],
)
def test_a_pattern_that_would_be_matched_for_hours_is_matched_soon(pattern, path):
    assert not is_excluded(path, [Rule(0, rule) for rule in compiled((pattern,))])


def differences(number, seed):
    """The first of at least `number` comparisons with git, of random patterns and paths, whose results differ."""
    rng = random.Random(seed)
    different = []
    num_compared = 0
    while num_compared < number and not different:
        with tempfile.TemporaryDirectory() as top:
            paths = _paths(Path(top, "repository"), rng)
            for _ in range(10):
                lines = {Path(top, "repository"): _lines(rng)}
                lines |= {path: _lines(rng) for path in rng.sample(paths, 2) if path.is_dir()}
                different += _different(paths, lines)
                num_compared += len(paths)
    return different[:10]


def _lines(rng):
    return [_line(rng) for _ in range(rng.randint(1, 4))]


def _line(rng):
    text = "".join(rng.choices(PARTS, k=rng.randint(1, 6)))
    return "!" * (rng.random() < 0.2) + text + (rng.choice(ENDINGS) if rng.random() < 0.2 else "")


def _paths(root, rng):
    subprocess.run(["git", "init", "--quiet", root], check=True, env=_environment(root))
    for _ in range(60):
        path = root.joinpath(*rng.choices(NAMES, k=rng.randint(1, 4)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except (NotADirectoryError, FileExistsError):
            continue
    return [path for path in sorted(root.rglob("*")) if path.relative_to(root).parts[0] != ".git"]


def _different(paths, lines):
    """Paths about which git decides otherwise, with both results."""
    root = next(iter(lines))
    for folder, patterns in lines.items():
        (folder / ".gitignore").write_bytes("\n".join(patterns).encode())
    names = [path.relative_to(root).as_posix() for path in paths]
    command = ["git", "check-ignore", "--no-index", "-z", "--stdin", "--verbose", "--non-matching"]
    given = "\0".join([*names, ""]).encode()
    # 1: none of the paths is ignored
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, cwd=root, env=_environment(root), check=False)
    patterns = done.stdout.split(b"\0")[2::4]
    expected = [bool(pattern) and not pattern.startswith(b"!") for pattern in patterns]
    actual = [_is_ignored(path, lines, root) for path in paths]
    for folder in lines:
        (folder / ".gitignore").unlink()
    both = zip(names, expected, actual, strict=True)
    shown = {str(folder.relative_to(root)): patterns for folder, patterns in lines.items()}
    return [(name, *values, shown) for name, *values in both if values[0] is not values[1]]


def _is_ignored(path, lines, root):
    parts, rules = path.relative_to(root).parts, []
    for depth in reversed(range(len(parts))):
        patterns = compiled(tuple(lines.get(root.joinpath(*parts[:depth]), ())))
        start = len(path_bytes("".join(f"{name}/" for name in parts[:depth])))
        rules += [Rule(start, pattern) for pattern in patterns]
    return is_excluded(path_bytes("/".join(parts)) + "/" * path.is_dir(), rules)


def _environment(root):
    return {**os.environ, "HOME": str(root), "XDG_CONFIG_HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
