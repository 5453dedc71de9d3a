import pytest

from dg_lsp.errors import ModelRuntimeError
from dg_lsp.models.runtime.patch import GEMMA4, Patch

OLD = "    hparams.non_causal_type = LLAMA_NON_CAUSAL_TYPE_SWA_ONLY;\n"
NEW = "    hparams.non_causal_type = LLAMA_NON_CAUSAL_TYPE_ALL;\n"


def test_the_patch_changes_one_line_of_one_file_and_says_why():
    assert Patch.read() == Patch("src/models/gemma4.cpp", ((OLD, NEW),))
    reason = GEMMA4.read_text().partition("\n--- ")[0]
    assert "stay causal" in reason


def test_it_is_applied_wherever_the_line_stands():
    assert Patch.read().apply(f"a\n{OLD}b\n", "1") == f"a\n{NEW}b\n"


@pytest.mark.parametrize(("source", "is_in"), [(NEW, True), (OLD, False), (OLD + NEW, False), ("", False)])
def test_it_knows_when_it_is_not_needed(source, is_in):
    assert Patch.read().is_in(source) is is_in


@pytest.mark.parametrize("source", ["", OLD + OLD, OLD.replace("SWA_ONLY", "WINDOWED")])
def test_a_source_that_it_was_not_made_for_is_refused(source):
    with pytest.raises(ModelRuntimeError, match=r"gemma4.cpp of llama-cpp-python 0.9 .*update dg-lsp"):
        Patch.read().apply(source, "0.9")


def test_context_and_several_hunks_are_understood(tmp_path):
    path = tmp_path / "other.patch"
    path.write_text(
        "Why.\n\n--- a/x.cpp\n+++ b/x.cpp\n@@ -1,2 +1,3 @@\n one\n+new\n two\n@@ -9 +10 @@ f()\n-old\n+young\n"
    )
    patch = Patch.read(path)
    assert patch.target == "x.cpp"
    assert patch.apply("one\ntwo\nthree\nold\n", "1") == "one\nnew\ntwo\nthree\nyoung\n"
