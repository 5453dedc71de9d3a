"""Locked versions, and the report about their known vulnerabilities; without the service, nothing fails."""

import json
import re
import tomllib

import dependencies
import pytest
from packaging.requirements import Requirement

SKIPPED = {"name": "a", "skip_reason": "not found"}
SAFE = {"name": "b", "version": "1", "vulns": []}
UNSAFE = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


@pytest.mark.parametrize(
    ("listed", "code", "shown"),
    [
        ([SKIPPED], 0, "skipped: its vulnerability service is not reachable"),
        ([SKIPPED, SAFE, UNSAFE], 1, "c 2: CVE-1, fixed in 3\npip-audit: 1 known vulnerabilities in 2 of 3"),
    ],
)
def test_known_vulnerabilities_fail_and_a_missing_service_does_not(listed, code, shown, capsys):
    assert dependencies.verdict(json.dumps({"dependencies": listed})) == code
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize(("lock", "extras"), [(dependencies.LOCK, ()), (dependencies.DEV_LOCK, ("dev",))])
def test_every_dependency_is_locked_in_an_allowed_version_with_its_checksums(lock, extras):
    project = tomllib.loads((dependencies.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(dependency for extra in extras for dependency in project["optional-dependencies"][extra]),
    ]
    entries = re.split(r"^(?=\S)", lock.read_text(encoding="utf-8").replace("\\\n", ""), flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
    locked = dict(re.match(r"([\w.-]+)==(\S+)", entry).groups() for entry in entries)
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(locked[requirement.name]), str(requirement)
