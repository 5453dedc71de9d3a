"""The locked dependencies: known vulnerabilities of all, bill of materials and licences of what a user installs."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK, DEV_LOCK = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
SECONDS = 180
SKIPPED = "pip-audit: skipped: its vulnerability service is not reachable"


def audit():
    """Prints known vulnerabilities, and fails for any; without the service, prints that nothing was audited."""
    command = ["pip_audit", "--requirement", DEV_LOCK, "--require-hashes", "--disable-pip", "--timeout", "10"]
    try:
        options = ["--progress-spinner", "off", "--format", "json"]
        done = _run(*command, *options, check=False, stdout=subprocess.PIPE, timeout=SECONDS)
        return verdict(done.stdout)
    except subprocess.TimeoutExpired:
        print(SKIPPED)
        return 0


def verdict(output):
    """Prints what pip-audit's JSON reports; returns the exit code."""
    try:
        listed = json.loads(output)["dependencies"]
    except ValueError:
        listed = []
    audited = [package for package in listed if "skip_reason" not in package]
    if not audited:
        print(SKIPPED)
        return 0
    problems = [(package, vulnerability) for package in audited for vulnerability in package["vulns"]]
    for package, vulnerability in problems:
        fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
        print(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    print(f"pip-audit: {len(problems)} known vulnerabilities in {len(audited)} of {len(listed)} locked packages")
    return 1 if problems else 0


def sbom(folder):
    """Writes the bill of materials and the list of licences."""
    folder.mkdir(exist_ok=True)
    materials, licences = folder / "dg-lsp.cdx.json", folder / "licences.md"
    options = ["--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--output-file", materials]
    _run("cyclonedx_py", "requirements", *options, LOCK)
    tree = json.loads(materials.read_text(encoding="utf-8"))
    tree["components"] += map(_model, sorted((ROOT / "dg_lsp/models").glob("*.gguf")))
    materials.write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    names = re.findall(r"^([\w.-]+)==", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    options = ["--from", "mixed", "--format", "markdown", "--with-urls", "--output-file", licences]
    _run("piplicenses", *options, "--packages", *names, stdout=subprocess.DEVNULL)
    print(f"{materials}\n{licences}")
    return 0


def _model(path):
    """A bundled model as CycloneDX describes one."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    facts = {"type": "machine-learning-model", "name": path.stem, "bom-ref": path.name}
    facts |= {"hashes": [{"alg": "SHA-256", "content": digest}], "licenses": [{"license": {"id": "Apache-2.0"}}]}
    if path.stem == "dg-base":
        base = {"type": "machine-learning-model", "group": "HuggingFaceTB", "name": "SmolLM2-135M-Instruct"}
        facts["pedigree"] = {"ancestors": [base | {"licenses": facts["licenses"]}]}
    return facts


def _run(module, *arguments, check=True, **options):
    return subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=check, **options)


if __name__ == "__main__":
    sys.exit(audit() if sys.argv[1] == "audit" else sbom(Path(sys.argv[2])))
