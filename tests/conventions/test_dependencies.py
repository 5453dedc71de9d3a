"""The report about known vulnerabilities; without the service, nothing fails."""

import json

import dependencies
import pytest

SKIPPED = {"name": "a", "skip_reason": "not found"}
SAFE = {"name": "b", "version": "1", "vulns": []}
UNSAFE = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


@pytest.mark.parametrize(
    ("listed", "code", "shown"),
    [
        ([SKIPPED], 0, "skipped: its vulnerability service is not reachable"),
        ([SKIPPED, SAFE], 0, "0 known vulnerabilities in 1 of 2 locked packages"),
        ([SAFE, UNSAFE], 1, "c 2: CVE-1, fixed in 3\npip-audit: 1 known vulnerabilities in 2 of 2"),
    ],
)
def test_known_vulnerabilities_fail_and_a_missing_service_does_not(listed, code, shown, capsys):
    assert dependencies.verdict(json.dumps({"dependencies": listed})) == code
    assert shown in capsys.readouterr().out


def test_no_output_at_all_is_a_missing_service(capsys):
    assert dependencies.verdict("") == 0
    assert "skipped" in capsys.readouterr().out
