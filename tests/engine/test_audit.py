"""The audit log's lines and its file."""

import json
import multiprocessing
import stat
import threading

import pytest

from dg_lsp.engine.audit import AuditLog, AuditRecord

RECORD = AuditRecord("2026-01-02T03:04:05.678+00:00", "id", "/infill", "m", "shown", total_seconds=0.1234567)


def records(path):
    return [AuditRecord.parse(line) for line in path.read_bytes().splitlines()]


def test_a_line_is_read_back_as_it_was_but_for_nanoseconds():
    line = RECORD.line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["success"] is True
    assert json.loads(line)["total_seconds"] == 0.123457
    assert AuditRecord.parse(line).endpoint == "/infill"


def test_a_line_of_a_later_version_is_read():
    tree = {**json.loads(RECORD.line()), "later": 1}
    assert AuditRecord.parse(json.dumps(tree)).model == "m"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        RECORD.line().replace(b"0.123457", b"NaN"),
        "{}",
        '"x"',
        "{",
        '{"time":1}',
        RECORD.line().replace(b'"steps":0', b'"steps":"0"'),
    ],
)
def test_what_is_no_record_is_refused(line):
    with pytest.raises(ValueError, match=r".+"):
        AuditRecord.parse(line)


@pytest.mark.parametrize(
    ("outcome", "success"), [("shown", True), ("nothing", True), ("unfinished", False), ("failed", False)]
)
def test_success_is_an_answer(outcome, success):
    assert AuditRecord("t", "id", "e", "m", outcome).is_success is success


def test_the_file_is_its_users_alone(tmp_path):
    AuditLog(tmp_path / "a.jsonl", 10_000, 1).write(RECORD)
    assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600


def test_a_full_file_is_put_aside_and_the_oldest_one_goes(tmp_path):
    path = tmp_path / "a.jsonl"
    size = len(RECORD.line())
    log = AuditLog(path, 2 * size, 2)
    for _ in range(9):
        log.write(RECORD)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".lock") == ["a.jsonl", "a.jsonl.1", "a.jsonl.2"]
    assert [p.stat().st_size // size for p in (path, tmp_path / "a.jsonl.1", tmp_path / "a.jsonl.2")] == [1, 2, 2]


def test_none_is_kept_where_none_is_wanted(tmp_path):
    log = AuditLog(tmp_path / "a.jsonl", 2 * len(RECORD.line()), 0)
    for _ in range(5):
        log.write(RECORD)
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".lock"] == ["a.jsonl"]
    assert len(records(tmp_path / "a.jsonl")) == 1


def test_a_file_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path):
    said = []
    log = AuditLog(tmp_path / "no" / "a.jsonl", 10_000, 1, said.append)
    log.write(RECORD)
    log.write(RECORD)
    assert len(said) == 1
    assert "a.jsonl cannot be written" in said[0]
    (tmp_path / "no").mkdir()
    log.write(RECORD)
    assert len(records(tmp_path / "no" / "a.jsonl")) == 1


def test_threads_lose_no_line(tmp_path):
    log = AuditLog(tmp_path / "a.jsonl", 10**9, 1)
    threads = [threading.Thread(target=lambda: [log.write(RECORD) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(records(tmp_path / "a.jsonl")) == 200


def write_many(path, size):
    log = AuditLog(path, 40 * size, 99)
    for _ in range(100):
        log.write(RECORD)


def test_processes_that_share_a_file_lose_no_line(tmp_path):
    path, size = tmp_path / "a.jsonl", len(RECORD.line())
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(path, size)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    files = [p for p in tmp_path.iterdir() if p.suffix != ".lock"]
    assert sum(len(records(file)) for file in files) == 200
