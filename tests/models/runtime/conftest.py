"""A llama.cpp of thirty lines: one class found by its name, as in the real one, and a source distribution around it."""

import io
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from dg_lsp.models import build_runtime
from dg_lsp.runtime import InstalledLibrary

VERSION = "0.3.36"
HEADER = """
enum { LLAMA_NON_CAUSAL_TYPE_SWA_ONLY = 1, LLAMA_NON_CAUSAL_TYPE_ALL = 2 };
struct llama_model { struct { int non_causal_type; } hparams; virtual void load() = 0; virtual ~llama_model() {} };
struct llama_model_gemma4 : llama_model { void load() override; };
"""
CHANGED_LINE = "    hparams.non_causal_type = LLAMA_NON_CAUSAL_TYPE_SWA_ONLY;"
CONTEXT_LINE = "    auto * inp_attn = build_attn_inp_kv_iswa();"
"""After which the patch adds lines, which a llama.cpp of thirty lines could not compile."""
GEMMA4 = (
    f'#include "models.h"\nvoid llama_model_gemma4::load() {{\n{CHANGED_LINE}\n}}\n#if 0\n{CONTEXT_LINE}\n\n#endif\n'
)
LLAMA = """
#include "models/models.h"
extern "C" int non_causal_type() { llama_model * model = new llama_model_gemma4; model->load();
                                   int type = model->hparams.non_causal_type; delete model; return type; }
"""
CMAKE = """
cmake_minimum_required(VERSION 3.14)
project(stub CXX)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(llama SHARED src/llama.cpp src/models/gemma4.cpp)
set_target_properties(llama PROPERTIES VERSION 0.5.0 SOVERSION 0)
"""
# pip asks a source distribution for its metadata, even to download it only
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = f"""
import os
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "llama_cpp_python-{VERSION}.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: llama_cpp_python\\nVersion: {VERSION}\\n")
    return name
"""


def files(version=VERSION, gemma4=GEMMA4):
    inside = "vendor/llama.cpp"
    return {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {version}\n",
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        f"{inside}/CMakeLists.txt": CMAKE,
        f"{inside}/src/llama.cpp": LLAMA,
        f"{inside}/src/models/models.h": HEADER,
        f"{inside}/src/models/gemma4.cpp": gemma4,
        f"{inside}/models/vocabulary.bin": "large",
    }


@dataclass(frozen=True)
class Sdists:
    folder: Path

    def packed(self, **options):
        path = self.folder / f"llama_cpp_python-{VERSION}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name, text in files(**options).items():
                member = tarfile.TarInfo(f"llama_cpp_python-{VERSION}/{name}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        return path

    def unpacked(self, **options):
        root = self.folder / "unpacked"
        for name, text in files(**options).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root


@pytest.fixture
def sdists(tmp_path):
    (tmp_path / "sdists").mkdir()
    return Sdists(tmp_path / "sdists")


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory):
    """The stub as its package would have brought it."""
    folder = tmp_path_factory.mktemp("installed")
    source = Sdists(folder).unpacked() / "vendor/llama.cpp/src"
    library = folder / "libllama.so"
    sources = [str(source / "llama.cpp"), str(source / "models/gemma4.cpp")]
    command = [
        shutil.which("c++"),
        "-shared",
        "-fPIC",
        "-O2",
        "-Wl,-soname,libstub.so.0",
        *sources,
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    shutil.copy(library, folder / "libstub.so.0")
    return library


def always(_folder):
    return True


@pytest.fixture
def here(stub_library, tmp_path, monkeypatch):
    """The stub is what is installed, and the runtime goes to a folder of the test."""
    installed = InstalledLibrary(VERSION, stub_library)
    monkeypatch.setattr(build_runtime, "installed_library", lambda: installed)
    monkeypatch.setenv("DG_LSP_RUNTIME", str(tmp_path / "place" / "runtime"))
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    return tmp_path / "place" / "runtime"
