"""The changed llama.cpp is built from a source of thirty lines, which has one class like that of the real one."""

import ctypes
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from dg_lsp import runtime
from dg_lsp.errors import DgLspError, ModelError, UsageError
from dg_lsp.models import build_runtime, packages
from dg_lsp.models.build_runtime import build_overlay, check_tools, compile_wheel
from dg_lsp.models.packages import unpack_llama_cpp
from dg_lsp.runtime import InstalledLibrary, read_runtime

pytestmark = pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="overlays exist only on ELF systems")
VERSION = "0.3.36"
GEMMA4_PATH = "vendor/llama.cpp/src/models/gemma4.cpp"
HEADER = """
enum { LLAMA_NON_CAUSAL_TYPE_SWA_ONLY = 1, LLAMA_NON_CAUSAL_TYPE_ALL = 2 };
struct llama_model { struct { int non_causal_type; } hparams; virtual void load() = 0; virtual ~llama_model() {} };
struct llama_model_gemma4 : llama_model { void load() override; };
"""
CHANGED_LINE = "    hparams.non_causal_type = LLAMA_NON_CAUSAL_TYPE_SWA_ONLY;"
CONTEXT_LINES = """
#include "models.h"
#include "llama-impl.h"
    inpL = build_inp_embd(model.tok_embd);
    cb(inpL, "inp_scaled", -1);

    auto * inp_attn = build_attn_inp_kv_iswa();

    cb(cur, "result_output", -1);
    res->t_logits = cur;

    ggml_build_forward_expand(gf, cur);
"""
"""The patch adds lines to these, which this source could not compile; so they stand in an `#if 0`."""
GEMMA4_SOURCE = (
    f'#include "models.h"\nvoid llama_model_gemma4::load() {{\n{CHANGED_LINE}\n}}\n#if 0\n{CONTEXT_LINES}\n#endif\n'
)
LLAMA = """
#include "models/models.h"
extern "C" int non_causal_type() { llama_model * model = new llama_model_gemma4; model->load();
                                   int type = model->hparams.non_causal_type; delete model; return type; }
"""
# pip reads the metadata of a source distribution even for a download
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
PKG_INFO = f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {VERSION}\n"
BACKEND = f"""
import os, shutil
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "llama_cpp_python-{VERSION}.dist-info"
    os.mkdir(os.path.join(folder, name))
    shutil.copy("PKG-INFO", os.path.join(folder, name, "METADATA"))
    return name
"""


@pytest.fixture(autouse=True, scope="module")
def no_known_source():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "SOURCE_SHA256", {})
        yield


def pack(folder, without="", gemma4=GEMMA4_SOURCE):
    inside = "vendor/llama.cpp"
    files = {
        "PKG-INFO": PKG_INFO,
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        f"{inside}/CMakeLists.txt": "",
        f"{inside}/src/llama.cpp": LLAMA,
        f"{inside}/src/models/models.h": HEADER,
        GEMMA4_PATH: gemma4,
        f"{inside}/models/vocabulary.bin": "large",
    }
    path = folder / f"llama_cpp_python-{VERSION}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            if name != without:
                member = tarfile.TarInfo(f"llama_cpp_python-{VERSION}/{name}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def packed(tmp_path):
    return pack(tmp_path)


@pytest.fixture(scope="module")
def stub_library(tmp_path_factory):
    """The compiled stub, as if it was installed."""
    folder = tmp_path_factory.mktemp("installed")
    source = unpack_llama_cpp(VERSION, pack(folder), folder) / "src"
    library = folder / "libllama.so"
    sources = [str(source / "llama.cpp"), str(source / "models/gemma4.cpp")]
    command = [shutil.which("c++"), "-shared", "-fPIC", "-O2", "-Wl,-soname,libstub.so.0", *sources, "-o", str(library)]
    subprocess.run(command, check=True)
    shutil.copy(library, folder / "libstub.so.0")
    return library


@pytest.fixture
def target(stub_library, tmp_path, monkeypatch):
    """The folder for the runtime; the stub is the installed library."""
    installed = InstalledLibrary(VERSION, stub_library)
    monkeypatch.setattr(runtime, "installed_library", lambda: installed)
    monkeypatch.setenv("DG_LSP_RUNTIME", str(tmp_path / "place" / "runtime"))
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    return tmp_path / "place" / "runtime"


# overlay

SWA_ONLY, ALL = 1, 2


def result(folder):
    return ctypes.CDLL(str(folder / "libllama.so")).non_causal_type()


def is_changed(folder):
    return result(folder) == ALL


def test_an_overlay_replaces_the_class_of_the_installed_library_and_outlives_a_failed_build(
    target, packed, stub_library
):
    overlay = build_overlay(packed, is_changed)
    assert overlay == read_runtime(target)
    assert overlay.fits(InstalledLibrary(VERSION, stub_library))
    (target / "old").write_text("")
    build_overlay(packed, is_changed)
    assert not (target / "old").exists(), "a second build replaces the first"
    broken = GEMMA4_SOURCE.replace(CHANGED_LINE, f"{CHANGED_LINE}\n    nonsense();")
    with pytest.raises(ModelError, match=r"c\+\+ failed: .*nonsense"):
        build_overlay(pack(packed.parent, gemma4=broken), is_changed)
    assert (result(stub_library.parent), result(target)) == (SWA_ONLY, ALL)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("source", "environment", "message"),
    [
        pytest.param({"without": GEMMA4_PATH}, {}, "has no src/models/gemma4.cpp: update dg-lsp", id="no class"),
        pytest.param({"gemma4": ""}, {}, "gemma4.cpp of llama-cpp-python 0.3.36 differs", id="another class"),
        pytest.param({"gemma4": GEMMA4_SOURCE + CHANGED_LINE + "\n"}, {}, "differs", id="ambiguous position"),
        pytest.param({}, {}, "run dg-lsp models build-runtime --backend cpu", id="no effect"),
        pytest.param({}, {"PATH": "/nowhere"}, r"g\+\+ .*is missing: .*apt-get install g\+\+", id="no compiler"),
        pytest.param({}, {"CXX": "special++"}, r"special\+\+ is missing", id="no compiler of the user"),
    ],
)
def test_a_build_that_is_not_possible_leaves_no_runtime(target, tmp_path, monkeypatch, source, environment, message):
    monkeypatch.delenv("CXX", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ModelError, match=message):
        build_overlay(pack(tmp_path, **source), lambda _folder: False)
    assert not target.exists()


@pytest.mark.parametrize(("place", "message"), [("..", "contains other"), (".", "contains other"), ("a", "set DG_LSP")])
def test_a_folder_with_other_files_is_not_replaced(target, packed, monkeypatch, place, message):
    target.mkdir(parents=True)
    file = target / "other.txt"
    file.write_text("text")
    monkeypatch.setenv("DG_LSP_RUNTIME", os.path.normpath(file / place))
    with pytest.raises(DgLspError, match=message):
        build_overlay(packed, is_changed)
    assert file.exists()


# source


def test_other_files_are_refused(packed, tmp_path):
    with pytest.raises(ModelError, match=r"is not the source of llama-cpp-python 0.3.37, which is installed"):
        unpack_llama_cpp("0.3.37", packed, tmp_path)
    with pytest.raises(ModelError, match=r"python-0.3.37.tar.gz does not exist: .*pip download"):
        unpack_llama_cpp("0.3.37", tmp_path, tmp_path)
    packed.write_bytes(packed.read_bytes()[:-200])
    with pytest.raises(ModelError, match="is damaged: fetch it again"):
        unpack_llama_cpp(VERSION, packed, tmp_path)


def test_only_the_published_source_is_fetched_and_used(tmp_path, monkeypatch):
    """pip refuses another one before it runs its code. Here it searches a folder instead of an index."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    source = pack(shelf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setattr(packages, "SOURCE_SHA256", {VERSION: hashlib.sha256(source.read_bytes()).hexdigest()})
    assert (unpack_llama_cpp(VERSION, None, tmp_path) / "src/models/gemma4.cpp").read_text() == GEMMA4_SOURCE
    monkeypatch.setattr(packages, "SOURCE_SHA256", {VERSION: 64 * "0"})
    with pytest.raises(ModelError, match=r"is not the published source of llama-cpp-python 0.3.36"):
        unpack_llama_cpp(VERSION, source, tmp_path)
    with pytest.raises(ModelError, match=r"pip reports: .*DO NOT MATCH THE HASHES.*; check the network"):
        unpack_llama_cpp(VERSION, None, tmp_path)
    monkeypatch.setattr(packages, "SOURCE_SHA256", {"0.3.35": ""})
    with pytest.raises(ModelError, match=r"knows no checksum .* install llama-cpp-python 0.3.35, or .* --from"):
        unpack_llama_cpp(VERSION, None, tmp_path)


# all of llama.cpp


def test_all_of_llama_cpp_is_compiled_with_the_change_and_the_users_options(target, packed, tmp_path, monkeypatch):
    """CUDA's compiler is not on the path, which has a compiler of C++ alone."""
    compiler, nvcc = tmp_path / "bin/c++", tmp_path / "cuda/nvcc"
    for program in (compiler, nvcc):
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent))
    monkeypatch.delenv("CXX", raising=False)
    cuda = {**build_runtime.BACKENDS["cuda"], "tools": ["nvcc", str(nvcc)]}
    monkeypatch.setitem(build_runtime.BACKENDS, "cuda", cuda)
    installed = []

    def pip(command, *arguments, environment=None):
        if command == "install":
            installed.append(Path(arguments[-1]).name)
            return
        folder, package = map(Path, arguments[-2:])
        with zipfile.ZipFile(folder / "llama_cpp_python.whl", "w") as wheel:
            wheel.write(package / GEMMA4_PATH, "llama_cpp/lib/gemma4.cpp")
            wheel.writestr("llama_cpp/lib/options", environment["CMAKE_ARGS"])
        path = environment["PATH"].split(os.pathsep)
        assert (path[0], path[-1]) == (os.environ["PATH"], str(nvcc.parent)), "CMake finds the compiler"

    def is_changed(folder):
        assert (folder / "options").read_text() == "-DGGML_CUDA=ON -DGGML_AVX512=ON"
        return "LLAMA_NON_CAUSAL_TYPE_ALL;" in (folder / "gemma4.cpp").read_text()

    monkeypatch.setattr(build_runtime, "run_pip", pip)
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_AVX512=ON")
    target.mkdir(parents=True)
    (target / "runtime.json").write_text("an overlay of the library that is replaced")
    with pytest.raises(ModelError, match="its results are those of the unchanged one"):
        compile_wheel("cuda", packed, lambda _folder: False)
    assert not installed
    compile_wheel("cuda", packed, is_changed)
    assert installed == ["llama_cpp_python.whl"]
    assert list(target.parent.iterdir()) == []
    with pytest.raises(UsageError, match="no backend 'abacus': use cpu, cuda"):
        check_tools("abacus")
    nvcc.unlink()
    with pytest.raises(ModelError, match=r"nvcc.* is missing: install the CUDA toolkit"):
        check_tools("cuda")


@pytest.mark.parametrize("reason", ["", "ensurepip is disabled"])
def test_an_environment_without_pip_gets_it_first(monkeypatch, reason):
    modules = []
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(packages, "run_program", lambda command, **_: modules.append(command[3]) or reason)
    with pytest.raises(ModelError, match=r"has no pip, .*\(ensurepip is disabled\)") if reason else nullcontext():
        packages.run_pip("download", "tiny")
    assert modules == (["ensurepip"] if reason else ["ensurepip", "pip"])


def test_only_the_needed_regular_files_inside_the_folder_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.delattr(tarfile, "data_filter", raising=False)  # as before Python 3.11.4
    root = f"llama_cpp_python-{VERSION}/vendor/llama.cpp"
    link = tarfile.TarInfo(f"{root}/link")
    link.type = tarfile.SYMTYPE
    link.linkname = "/etc/passwd"
    packed = tmp_path / f"llama_cpp_python-{VERSION}.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.addfile(link)
        for name in (f"{root}/run.sh", f"{root}/docs/index.md", f"{root}/../../../../outside", f"{tmp_path}/outside"):
            member = tarfile.TarInfo(name)
            member.mode = 0o4755
            archive.addfile(member)
    unpacked = unpack_llama_cpp(VERSION, packed, tmp_path / "into")
    assert [path.name for path in unpacked.iterdir()] == ["run.sh"]
    assert (unpacked / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert not (tmp_path / "outside").exists()
