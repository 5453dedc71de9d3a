"""Which licence a wheel states in its own metadata, and whether we may learn from it."""

import re
from email.parser import HeaderParser

ALLOWED = re.compile(
    r"(?i)\b(mit(-0|-cmu)?|expat|bsd|0bsd|bsd[- ][0-9]-clause|[0-9]-clause bsd|apache|asl|psf|python-2\.0|"
    r"python software foundation|isc|iscl|zlib|unlicense|hpnd|historical permission notice|cc0|boost|bsl-1\.0)\b"
)
REFUSED = re.compile(
    r"(?i)\b[al]?gpl|general public|\bmpl\b|mozilla|\beupl|\bepl\b|eclipse|\bcddl|\bcecill|\bosl\b|affero|"
    r"proprietary|commercial|\bcc-by-(nc|sa)|business source|\bsspl|elastic license|all rights reserved"
)


def stated_licence(metadata: str) -> str:
    """The licence a METADATA file states: expression first, then classifiers, then the free text's first line."""
    headers = HeaderParser().parsestr(metadata)
    if expression := headers.get("License-Expression"):
        return str(expression).strip()
    classifiers = [str(c) for c in headers.get_all("Classifier") or []]
    found = [c.split("::")[-1].strip() for c in classifiers if c.startswith("License ::")]
    found = [c for c in found if c != "OSI Approved"]
    if found:
        return " AND ".join(found)
    lines = [line.strip() for line in str(headers.get("License") or "").splitlines() if line.strip()]
    return lines[0][:120] if lines else ""


def is_allowed(licence: str) -> bool:
    """True for permissive licences only; anything unknown, copyleft or empty is refused."""
    return bool(ALLOWED.search(licence)) and not REFUSED.search(licence)
