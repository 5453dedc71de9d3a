import json
import tomllib
from pathlib import Path

import pytest

import dg_lsp.training
from dg_lsp.training.licences import is_allowed, stated_licence

ROOM = Path(dg_lsp.training.__file__).parent


def metadata(*lines):
    return "Metadata-Version: 2.4\nName: x\n" + "\n".join(lines) + "\n\nThe readme: License: MIT\n"


@pytest.mark.parametrize(
    "lines",
    [
        ("License-Expression: MIT",),
        ("License-Expression: Apache-2.0 OR BSD-3-Clause",),
        ("License: BSD", "Classifier: License :: OSI Approved :: BSD License"),
        ("Classifier: License :: OSI Approved :: Python Software Foundation License",),
        ("License: ISC",),
        ("License: 0BSD",),
    ],
)
def test_permissive(lines):
    assert is_allowed(stated_licence(metadata(*lines)))


@pytest.mark.parametrize(
    "lines",
    [
        ("License-Expression: GPL-3.0-or-later",),
        ("License-Expression: MIT AND LGPL-2.1-only",),
        ("License: MIT", "Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)"),
        ("Classifier: License :: OSI Approved :: GNU Affero General Public License v3",),
        ("License: AGPL",),
        ("Classifier: License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)",),
        ("License: Proprietary",),
        ("License: see LICENSE",),
        (),
    ],
)
def test_everything_else_is_refused(lines):
    assert not is_allowed(stated_licence(metadata(*lines)))


def test_the_expression_outweighs_older_fields():
    text = metadata("License: GPL", "License-Expression: MIT", "Classifier: License :: OSI Approved :: MIT License")
    assert stated_licence(text) == "MIT"


def test_every_source_of_the_manifest_is_allowed_and_pinned():
    manifest = json.loads((ROOM / "manifest.json").read_text())
    pins = tomllib.loads((ROOM / "packages.toml").read_text())
    held_out = set(pins["held_out"])
    for source in manifest["sources"]:
        assert is_allowed(source["licence"]), source
        assert source["split"] == ("val" if source["package"] in held_out else "train")
        if source["package"] != "stdlib":
            assert pins["versions"][source["package"]] == source["version"]
