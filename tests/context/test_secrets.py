"""Forms of tokens that are masked in the context of other files."""

import re
import time

import pytest

from dg_lsp.context.exclusion import MASK, _secrets, mask_secrets

RULES = {rule["id"]: rule for rule in _secrets()["rules"]}


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


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_takes_linear_time(rule):
    regex, keyword = re.compile(RULES[rule]["regex"]), RULES[rule]["keywords"][0]
    beginnings = (keyword, f"{keyword} = '", f"{keyword.upper()}-", f"{keyword}a1.", f"{keyword} \t")
    fragments = (*beginnings, "a", "aB1-", "1")
    short, long = ("!\n".join(text * (size // len(text)) for text in fragments) for size in (5000, 20_000))
    # quadratic time would be 16 times as long; the summand is for times that are too short to compare
    assert any(_seconds(regex, long) < 8 * _seconds(regex, short) + 0.05 for _ in range(3))


def _seconds(regex, text):
    began = time.process_time()
    regex.sub(MASK, text)
    return time.process_time() - began
