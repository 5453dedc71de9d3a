import pytest

from dg_lsp.bench.sandbox.audit import CHANGES, REFUSED_WHOLE
from dg_lsp.bench.sandbox.seccomp import FIRST_UNKNOWN, REFUSED, refused_numbers


@pytest.mark.parametrize("processor", REFUSED)
def test_the_tables_of_system_calls_are_well_formed(processor):
    words = " ".join(REFUSED[processor].values()).split()
    names, numbers = words[::2], words[1::2]
    assert len(set(names)) == len(names)
    assert sorted(map(int, numbers)) == refused_numbers(processor)
    assert len(set(numbers)) == len(numbers) < 200  # jumps of the filter are one byte
    assert max(refused_numbers(processor)) < FIRST_UNKNOWN


def test_the_tables_refuse_the_same_where_both_have_it():
    known = {"x86_64": {"fork", "vfork", "chmod", "chown", "lchown", "utime", "utimes", "futimesat", "iopl", "ioperm"}}
    known["x86_64"].add("modify_ldt")
    names = {kind: set(" ".join(groups.values()).split()[::2]) for kind, groups in REFUSED.items()}
    assert names["x86_64"] - known["x86_64"] == names["aarch64"]


def test_the_hook_knows_events_that_python_raises():
    assert set(CHANGES) & set(REFUSED_WHOLE) == set()
    assert all(number in (1, 2) for number in CHANGES.values())
