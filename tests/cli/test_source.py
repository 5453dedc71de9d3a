import os
import shutil
import stat
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dg_lsp.cli.source import Location, SourceFile, parse_location
from dg_lsp.engine.request import Replacement
from dg_lsp.errors import InputFileError
from dg_lsp.postprocess.validate import Candidate

BOM = b"\xef\xbb\xbf"

LINE_ENDS = ["\n", "\r\n", "\r", ""]
line_text = st.text(st.characters(blacklist_characters="\r\n\0", blacklist_categories=["Cs"]), max_size=12)
texts = st.lists(st.tuples(line_text, st.sampled_from(LINE_ENDS))).map(lambda ls: "".join(a + b for a, b in ls))


def edit(start, end, text):
    return Replacement(start, end, Candidate(text, 0.0))


def source_of(path: Path, data: bytes) -> SourceFile:
    path.write_bytes(data)
    return SourceFile.read(path)


@given(text=texts, has_bom=st.booleans(), fill=line_text | texts, at=st.integers(0, 10**6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_an_insert_keeps_every_other_byte(tmp_path, text, has_bom, fill, at):
    path = tmp_path / "a.py"
    before = (BOM if has_bom else b"") + text.encode()
    source = source_of(path, before)
    # a text may begin with a byte order mark of its own: only the first one is the file's
    offset = at % (len(source.text) + 1)
    source.replace(edit(offset, offset, fill))
    head = before[: len(before) - len(source.text[offset:].encode())]
    assert path.read_bytes() == head + fill.encode() + before[len(head) :]


@pytest.mark.parametrize("mode", [0o600, 0o4755])
def test_mode_owner_and_group_of_the_target_of_a_link_are_kept(tmp_path, mode):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target = folder / "target.py"
    target.write_bytes(b"x")
    if os.geteuid() == 0:
        os.chown(target, 12345, 54321)
    target.chmod(mode)
    before = target.stat()
    link = tmp_path / "link.py"
    link.symlink_to("elsewhere/target.py")
    SourceFile.read(link).replace(edit(1, 1, "y"))
    after = target.stat()
    assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (before.st_uid, before.st_gid, mode)
    assert (link.is_symlink(), target.read_bytes()) == (True, b"xy")
    names = sorted(path.name for path in (*tmp_path.iterdir(), *folder.iterdir()))
    assert names == ["elsewhere", "link.py", "target.py"]


class Crash(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("step", ["mkdtemp", "fsync", "replace", "copystat"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), Crash()])
def test_a_failure_before_the_rename_leaves_the_file_unchanged(tmp_path, monkeypatch, step, failure):
    path = tmp_path / "a.py"
    source = source_of(path, b"x")
    owner = {"mkdtemp": tempfile, "fsync": os, "copystat": shutil}.get(step, Path)
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, Mock(side_effect=failure))
        with pytest.raises(InputFileError if isinstance(failure, OSError) else Crash) as caught:
            source.replace(edit(0, 0, "y"))
    if isinstance(failure, OSError):
        assert "No space left on device (it is unchanged)" in str(caught.value)
    assert path.read_bytes() == b"x"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("form", "text", "location"),
    [
        ("FILE:LINE[:COL]", r"C:\work\a.py:3:7", (r"C:\work\a.py", 3, 3, 7)),
        ("FILE:LINE[:COL]", "a:1:2:3", ("a:1", 2, 2, 3)),
        ("FILE:LINE[:COL]", "a\nb.py:2", ("a\nb.py", 2, 2, None)),
        ("FILE[:FIRST-LAST]", "a:b:3-4", ("a:b", 3, 4, None)),
    ],
)
def test_a_location_is_read_from_the_right(form, text, location):
    path, *numbers = location
    assert parse_location(text, form) == Location(Path(path), *numbers)
