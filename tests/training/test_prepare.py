import json
import random
import zipfile

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("gguf")
pytest.importorskip("datasketch")

from dg_lsp.training import prepare as room
from dg_lsp.training.store import load_store
from dg_lsp.training.wheels import read_wheels

from .conftest import source


def wheel(folder, name, version, licence, files):
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nLicense-Expression: {licence}\n")
        for path, text in files.items():
            archive.writestr(f"{name}/{path}", text)


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    texts = [source(random.Random(i), 60) for i in range(6)]
    tests = {"tests/test_a.py": texts[5], "human_eval.py": texts[5], "data.txt": "x"}
    wheel(folder, "good", "1.0", "MIT", {"a.py": texts[0], "b.py": texts[1], **tests})
    wheel(folder, "held", "2.0", "Apache-2.0", {"c.py": texts[2], "copied.py": texts[0]})
    wheel(folder, "copyleft", "1.0", "GPL-3.0-only", {"d.py": texts[3]})
    wheel(folder, "good", "0.9", "MIT", {"old.py": texts[4]})
    pins = 'held_out = ["held"]\n[versions]\ngood = "1.0"\nheld = "2.0"\ncopyleft = "1.0"\n'
    (tmp_path / "packages.toml").write_text(pins)
    monkeypatch.setattr(
        "dg_lsp.training.wheels.stdlib_sources", lambda: [("lib.py", source(random.Random(9), 60).encode())]
    )
    monkeypatch.setattr(room, "TOKENIZER_STRIDE", 1)
    # synthetic files share most of their lines
    monkeypatch.setattr("dg_lsp.training.duplicates.MAX_REPEATED", 0.99)
    manifest = room.prepare(tmp_path, offline=True, packages=tmp_path / "packages.toml", copy=None, processes=1)
    return tmp_path, manifest


def test_only_pinned_permissive_packages_are_learned_from(prepared):
    _, manifest = prepared
    assert [(s["package"], s["split"], s["files"]) for s in manifest["sources"]] == [
        ("good", "train", 1),  # b.py: a.py is also in the held-out package
        ("stdlib", "train", 1),
        ("held", "val", 2),
    ]
    assert manifest["refused_licences"] == {"copyleft": "GPL-3.0-only"}
    assert manifest["dropped"]["exact duplicate"] == 1
    assert manifest["dropped"]["path"] == 2


def test_stores_hold_the_files_of_their_split(prepared):
    root, manifest = prepared
    for split, num_files in (("train", 2), ("val", 2)):
        store, files = load_store(root / split), room.read_texts(root / f"{split}.jsonl.xz")
        assert len(store.token_starts) - 1 == len(files) == num_files
        assert store.chars.tobytes().decode("utf-32-le") == "".join(file.text for file in files)
        assert manifest["tokens"][split] == len(store.tokens)
    assert json.loads((root / "manifest.json").read_text()) == manifest


def test_metadata_is_the_wheels_own(prepared):
    root, _ = prepared
    assert {(w.package, w.version, w.licence) for w in read_wheels(root / "wheels")} == {
        ("good", "1.0", "MIT"),
        ("good", "0.9", "MIT"),
        ("held", "2.0", "Apache-2.0"),
        ("copyleft", "1.0", "GPL-3.0-only"),
    }
