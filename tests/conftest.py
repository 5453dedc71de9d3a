"""Settings and fixtures for the tests of several packages."""

import os
import signal
import sys
from pathlib import Path

import pytest
import tiny_diffusiongemma
from hypothesis import settings

VSCODE = Path(__file__).parent / "editors/vscode"

# the tests' own servers are on this machine: a proxy cannot reach them
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

# nor do they read the developer's settings
os.environ["DG_LSP_CONFIG_DIR"] = os.devnull

# they use the small bundled model; tests of the choice delete this
os.environ["DG_LSP_AUTO_MODEL"] = "dg-mini"

# a shell ignores Ctrl-C in what it starts in the background, and so would the programs of the tests
signal.signal(signal.SIGINT, signal.default_int_handler)

# property tests never fail because the machine is busy
settings.register_profile("dg-lsp", deadline=None)
settings.load_profile("dg-lsp")


def pytest_collection_modifyitems(items):
    """A test in VS Code may fail once, which is reported: in a browser it loses a key or its focus at times."""
    for item in items:
        if VSCODE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Escapes lone surrogates in captured logs: they cannot travel between the processes of pytest."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_unconfigure():
    """Closes files that llama_cpp leaves open, which would be lines of warnings below the result."""
    if (module := sys.modules.get("llama_cpp._utils")) is not None:
        module.outnull_file.close()
        module.errnull_file.close()


@pytest.fixture
def user_settings(tmp_path_factory, monkeypatch):
    """`user_settings(text)` writes the user's settings file."""
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("DG_LSP_CONFIG_DIR", str(folder))

    def write(text):
        path = folder / "dg-lsp.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """The directory of a tiny random DiffusionGemma as transformers saves it, in several shards."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-diffusiongemma"
    return tiny_diffusiongemma.write_checkpoint(folder, shard_size="1MB")


@pytest.fixture(scope="session")
def tiny_repacked(tiny_checkpoint, tmp_path_factory):
    """The same model as a repacked GGUF in float32, its side file beside it."""
    return tiny_diffusiongemma.write_repacked(tiny_checkpoint, tmp_path_factory.mktemp("repacked") / "tiny.gguf")


@pytest.fixture(scope="session")
def bwrap():
    """A sandbox; without a working bubblewrap the test fails in CI and is skipped elsewhere."""
    from dg_lsp.errors import SandboxError
    from dg_lsp.sandbox import Sandbox

    try:
        return Sandbox()
    except SandboxError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
