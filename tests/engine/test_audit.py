"""Records of the audit log, and its file."""

import dataclasses
import stat
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import Snapshot
from dg_lsp.context.edit_task import EditTask
from dg_lsp.diffusion.denoiser import DeviceMemory, Footprint
from dg_lsp.engine import audit
from dg_lsp.engine.audit import AuditLog, AuditRecord, line_of, read_log
from dg_lsp.engine.request import ChatRequest, FillRequest, FillResult, RewriteRequest, Timings
from dg_lsp.engine.ttfue import Outcome
from dg_lsp.errors import BackendError
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection
from dg_lsp.settings import PrivacySettings

RECORD = AuditRecord("2026-01-02T03:04:05.678+00:00", "id", "/infill", "shown", total_seconds=0.1234567)
LINE = line_of(RECORD)
SIZE = len(LINE)


def test_lines_have_records_to_the_microsecond_and_others_are_counted(tmp_path):
    bad = [b"", b"[]", b"{}", b'"x"', b"{", b'{"time":1}', LINE.replace(b"0.123457", b'"late"').strip(), b"[" * 100_000]
    of_a_later_version = LINE.replace(b"{", b'{"new":1,')
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"\n".join([*bad, LINE + of_a_later_version]))
    assert read_log(path) == ([dataclasses.replace(RECORD, total_seconds=0.123457)] * 2, [], len(bad))


CHAT = ChatRequest((), "", endpoint="/infill", max_tokens=32)
ON_GPU = Footprint(devices=(DeviceMemory("a card", 1, 2),), gpu_estimate=5_000)


def recorded(tmp_path, outcome=None, request=CHAT, engine=None):
    """The record of a request that ended with a result or an error, or was cancelled."""
    path = tmp_path / "audit.jsonl"
    future = Future()
    if outcome is None:
        future.cancel()
    elif isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    AuditLog.of(PrivacySettings(audit_log=str(path))).finished(request, future, 0.6, engine)
    [record], _, num_bad = read_log(path)
    assert num_bad == 0
    assert record.endpoint == "/infill"
    return record


TIMINGS = Timings(5.0, 500.0, 1.0, 506.0, setup=1.0)
SHOWN = (Candidate("sesame", -0.1),)
# llama-server reports the path of its file
FILL = FillResult("/home/ann/m.gguf", SHOWN, (), 16, 4, 20, 100, 90, TIMINGS, DecoderName.DIFFUSION, canvas_tokens=32)
EMPTY = dataclasses.replace(FILL, candidates=(), rejections=(Rejection(Reason.EMPTY),))


def test_fill_leaves_its_numbers_and_no_text(tmp_path):
    engine = SimpleNamespace(footprint=ON_GPU)
    record = recorded(tmp_path, dataclasses.replace(FILL, step_limit=48), engine=engine)
    assert (record.outcome, record.reason) == ("shown", "")
    assert (record.decoder, record.steps, record.step_limit) == ("diffusion", 4, 48)
    assert (record.prompt_tokens, record.reused_tokens, record.output_tokens, record.canvas_tokens) == (100, 90, 20, 32)
    assert (record.setup_seconds, record.prefill_seconds, record.generation_seconds) == (0.001, 0.005, 0.5)
    assert (record.prompt_rate, record.output_rate, record.step_rate) == (2500.0, 40.0, 8.0)
    assert (record.gpu, record.gpu_budget_bytes, record.task, record.language) == ("a card", 5_000, "", "")
    assert record.resident_bytes > 0
    assert "sesame" not in (tmp_path / "audit.jsonl").read_text()


CODE = Snapshot("file:///secret/tests/a.py", "x = 1\n")
UNKNOWN = dataclasses.replace(CODE, uri="file:///a.x", language="any words")


@pytest.mark.parametrize(
    ("request_", "task", "language"),
    [
        pytest.param(FillRequest(CODE, 4), EditTask.TEST, "python", id="fill"),
        pytest.param(RewriteRequest(CODE, 0, 5, "double it"), EditTask.INSTRUCTION, "python", id="instruction"),
        pytest.param(RewriteRequest(CODE, 0, 5), EditTask.REWRITE, "python", id="rewrite"),
        pytest.param(FillRequest(UNKNOWN, 4), EditTask.LINE_END, "plaintext", id="a language of the client"),
    ],
)
def test_a_record_has_the_task_and_the_language_and_no_path(tmp_path, request_, task, language):
    record = recorded(tmp_path, request=dataclasses.replace(request_, endpoint="/infill"))
    assert (record.task, record.language) == (task, language)
    text = (tmp_path / "audit.jsonl").read_text()
    assert not any(word in text for word in ("secret", "double", "any words"))


def test_no_folder_of_a_model_is_recorded(tmp_path):
    assert recorded(tmp_path, FILL).model == "m.gguf"
    outcome = Outcome(time=RECORD.time, request="id", model="C:\\ann\\m.gguf", trigger="typed", verdict="useful")
    assert b'"m.gguf"' in line_of(outcome)


@pytest.mark.parametrize(
    ("outcome", "wanted"),
    [
        pytest.param(EMPTY, ("nothing", "empty"), id="nothing"),
        pytest.param(FillResult.unfinished(), ("unfinished", "unfinished"), id="unfinished"),
        pytest.param(BackendError("x"), ("failed", "BackendError"), id="failed"),
        pytest.param(None, ("cancelled", ""), id="cancelled"),
    ],
)
def test_request_without_a_suggestion_leaves_a_reason(tmp_path, outcome, wanted):
    record = recorded(tmp_path, outcome)
    assert (record.outcome, record.reason) == wanted


def test_only_the_user_can_read_the_file_and_without_a_path_there_is_none(tmp_path):
    assert AuditLog.of(PrivacySettings()) is None
    AuditLog(tmp_path / "a.jsonl").write(RECORD)
    assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600
    (tmp_path / "a.jsonl").chmod(0o666)
    AuditLog(tmp_path / "a.jsonl").write(RECORD)
    assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600


def test_full_file_is_renamed_in_place_of_the_older_one(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "MAX_BYTES", 2 * SIZE)
    log = AuditLog(tmp_path / "a.jsonl")
    for _ in range(5):
        log.write(RECORD)
    sizes = {p.name: p.stat().st_size // SIZE for p in tmp_path.iterdir() if p.suffix != ".lock"}
    assert sizes == {"a.jsonl": 1, "a.jsonl.1": 2}
    assert len(read_log(tmp_path / "a.jsonl")[0]) == 3


def test_file_that_cannot_be_written_is_reported_once(tmp_path):
    errors = []
    log = AuditLog(tmp_path / "no" / "a.jsonl", errors.append)
    log.write(RECORD)
    log.write(RECORD)
    assert len(errors) == 1
    assert "a.jsonl cannot be written" in errors[0]
    (tmp_path / "no").mkdir()
    log.write(RECORD)
    assert len(read_log(tmp_path / "no" / "a.jsonl")[0]) == 1
    AuditLog.of(PrivacySettings(audit_log="~gone/a.jsonl"), errors.append).write(RECORD)
    assert "~gone/a.jsonl cannot be written" in errors[1]


def test_threads_and_processes_lose_no_line(tmp_path, monkeypatch):
    """Logs that are not one object lock each other as those of two processes do."""
    monkeypatch.setattr(audit, "MAX_BYTES", 150 * SIZE)  # the file is renamed once
    logs = [AuditLog(tmp_path / "a.jsonl") for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        pool.map(lambda number: logs[number % 4].write(RECORD), range(200))
    assert len(read_log(tmp_path / "a.jsonl")[0]) == 200
