"""Forms of tokens that are masked in the context of other files."""

import random
import re
import string
import time
from re import _parser as parser

import pytest

from dg_lsp.context.exclusion import MASK, _secrets, mask_secrets

RULES = {rule["id"]: rule for rule in _secrets()["rules"]}
NO_TOKEN = {"gitleaks:aws-amazon-bedrock-api-key-short-lived"}
"""Rules that match a constant, the beginning of a token."""


@pytest.mark.parametrize(
    "token",
    [
        "NRAK-" + "A1" * 13 + "A",
        "nvapi-" + "a1" * 32,
        "oy2" + "a1" * 21 + "a",
        "phx_" + "a1" * 20,
        "sbp_" + "a1" * 20,
        "sq0csp-" + "a1" * 21 + "a",
        "tskey-auth-" + "a1" * 16,
        "ya29." + "a1" * 20,
        "1//0" + "a1" * 20,
        "0a" * 16 + "-us12",
        "MTE" + "a1" * 11 + ".GhJk12." + "a1" * 14,
        "pcsk_" + "a1" * 20,
        "r8_" + "a1" * 19,
    ],
)
def test_tokens_of_rules_of_our_own_are_masked(token):
    assert mask_secrets(f'token = "{token}", 1') == f'token = "{MASK}", 1'
    assert token[12:] not in mask_secrets(f"f({token})")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('ADOBE_CLIENT_ID = "' + "0a" * 16 + '"', "0a0a"),
        ("cloudflare_api_key: " + "aB1-" * 10, "aB1-"),
        ("Authorization: Bearer abcdef123", "abcdef123"),
        ("curl -u me:hunter2 https://host", "hunter2"),
        ("machine host login me password hunter2", "hunter2"),
        ("Server=x;User Id=me;Password=hunter2;", "hunter2"),
        ("https://host/?a=b&api_key=a1b2c3d4e5f6a7b8", "c3d4"),
        ('const apiToken = "a1b2c3d4e5f6a7b8"', "c3d4"),
        ("https://" + "0a" * 16 + "@o1.ingest.sentry.io/2", "0a0a"),
        ("//registry.npmjs.org/:_authToken=" + "a1b2" * 8, "a1b2"),
        ("AccountKey=" + "aB1/" * 21 + "aB==", "aB1/"),
        ("AWS_SECRET_ACCESS_KEY=" + "aB1/" * 10, "aB1/"),
    ],
)
def test_the_secret_of_an_assignment_or_an_address_is_masked(text, secret):
    masked = mask_secrets(f"# {text}\n")
    assert secret in text
    assert secret not in masked
    assert MASK in masked


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.startswith("gitleaks:") and rule not in NO_TOKEN])
def test_what_a_rule_describes_is_masked(rule):
    regex, keyword, rng = RULES[rule]["regex"], RULES[rule]["keywords"][-1], random.Random(rule)
    samples = ("".join(_sample(parser.parse(regex), rng)) for _ in range(20))
    matches = [match for match in (re.search(regex, f' {keyword} "{text}" ') for text in samples) if match is not None]
    assert matches
    for match in matches:
        secret = match[match.lastindex or 0]
        if re.search(r"\d", secret):  # nearly all random ones have a digit
            assert secret not in mask_secrets(match.string)


def _sample(pattern, rng):
    """Random text, in pieces, that an expression matches if its assertions hold."""
    for kind, value in pattern:
        match str(kind):
            case "LITERAL":
                yield chr(value)
            case "ANY" | "NOT_LITERAL":
                yield "."
            case "IN":
                regex = re.compile(f"[{'^' * (str(value[0][0]) == 'NEGATE')}{''.join(map(_member, value))}]")
                yield rng.choice([char for char in string.printable if regex.fullmatch(char)])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, inner = value
                for _ in range(rng.randint(least, min(most, least + 2))):
                    yield from _sample(inner, rng)
            case "SUBPATTERN":
                yield from _sample(value[-1], rng)
            case "BRANCH":
                yield from _sample(rng.choice(value[1]), rng)


def _member(node):
    kind, value = str(node[0]), node[1]
    if kind == "CATEGORY":
        return {"CATEGORY_WORD": r"\w", "CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_NOT_SPACE": r"\S"}[
            str(value)
        ]
    return "-".join(re.escape(chr(at)) for at in (value if kind == "RANGE" else [value] * (kind == "LITERAL")))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_takes_linear_time(rule):
    regex, keyword = re.compile(RULES[rule]["regex"]), RULES[rule]["keywords"][0]
    beginnings = (keyword, f"{keyword} = '", f"{keyword.upper()}-", f"{keyword}a1.", f"{keyword} \t")
    for fragment in (*beginnings, "a", "aB1-", "1"):
        short, long = (fragment * (size // len(fragment)) + "!" for size in (25_000, 100_000))
        # quadratic time would be 16 times as long; the summand is for times that are too short to compare
        assert any(_seconds(regex, long) < 8 * _seconds(regex, short) + 0.05 for _ in range(3)), fragment


def _seconds(regex, text):
    began = time.process_time()
    regex.sub(MASK, text)
    return time.process_time() - began
