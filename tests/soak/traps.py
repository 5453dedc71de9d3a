"""Every command in a folder of traps: files that leave a mark when a program executes or obeys them.

The commands are those of the command line's own tree, so that a new one is included by itself. Each runs with the
folder as working directory and as folder of its files, with `.` and an empty entry first on PATH, as the installed
program and as `python -P -m dg_lsp`. Language servers start as both editors start them, and in the folder.

Out of reach of dg-lsp are `python -m dg_lsp` without `-P` in a folder with a `dg_lsp/`, and a PYTHONPATH with an empty
or relative entry: Python imports from there before any file of dg-lsp is read.
"""

import ctypes
import itertools
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from e2e.conftest import Launcher
from hostile import SECRETS, executed, make_hostile, make_hostile_settings, module_names
from language_client import PATIENT

from dg_lsp.cli.app import COMMANDS, load_command
from dg_lsp.models.registry import BUNDLED

ROOT = Path(__file__).parents[2]
LIMIT = 300.0
"""Seconds for one command on a busy machine."""
PROGRAM = "from dg_lsp.cli import main\nmain()\n"
"""What pip installs as `dg-lsp`: its own folder is on `sys.path`, the working directory is not."""
MAIN = """import json
import queue
import secrets


class Basket:
    def __init__(self, owner, items):
        self.owner = owner
        self.items = \


    def total(self):
        ...
"""
CASE = {
    "task_id": "1",
    "prompt": "def add(a, b):\n",
    "suffix": "",
    "canonical_solution": "    return a + b\n",
    "test": "def check(add):\n    assert add(1, 2) == 3\n",
    "entry_point": "add",
}
ARGUMENTS = {
    "FILE:LINE[:COL]": "main.py:9",
    "FILE:FIRST-LAST": "main.py:7-9",
    "[INSTRUCTION]": "rename owner to user",
    "AUDIT.jsonl": "audit.jsonl",
    "DATA.jsonl[.gz]": "cases.jsonl",
    "NAME": "qwen2.5-coder-0.5b",
    "SOURCE": "checkpoint",
    "FOLDER": ".",
    "CASES.jsonl": "out.jsonl",
}
"""What stands for a required argument or option; a file of code for any other one."""
OPTIONS = {
    "setup": ["--yes"],
    "fill": ["--visual", "--json", "--write"],
    "rewrite": ["--json", "--write"],
    "serve": ["--port", "0"],
    "daemon start": ["--exit-when-idle"],
    "models pull": ["--accept-licence"],
    "models convert": ["--type", "Q8_0", "-o", "converted.gguf"],
    "models build-runtime": ["--backend", "cpu"],
    "models show": ["dg-mini"],
    "bench replay": ["--limit", "2"],
    "bench infill": ["--limit", "1", "--output", "run.jsonl", "--execute"],
}
LASTING = ("listening on", "the daemon listens", "runs already", "ready")
"""What a command that goes on reports when it is ready."""
FOREVER = ("serve", "daemon run")
LIBRARIES = ("libllama.so", "libggml.so", "libggml-base.so", "libggml-cpu.so", "libggml-cuda.so", "libggml-cpu-x64.so")
LIBRARY = """
extern int creat(const char *path, unsigned mode);
__attribute__((constructor)) static void mark(void) { creat("%s", 0600); }
"""
PROGRAMS = ("nvidia-smi", "cmake", "ninja", "bwrap", "latex", "dg-lsp", "pipx")
"""Programs besides those of this machine."""
SECRET_NAMES = {Path(name).name for name in SECRETS}
NEVER_OPENED = {"obeyed-model.gguf", "matplotlibrc", "pyvenv.cfg", "pip.conf", ".pdbrc", *SECRET_NAMES}
"""No command has a reason to open them, unless it names them."""


# the folder


class Folder:
    """The traps, a home without any, and what was executed, opened and connected to."""

    def __init__(self, top, figures=None):
        self.top = top
        self.figures = figures
        self.path = top / "project"
        self.home = top / "home"
        self.marks = top / "marks"
        for folder in (self.path, self.home, self.marks, top / "bin"):
            folder.mkdir(parents=True)
        self.program = top / "bin/dg-lsp"
        self.program.write_text(f"#!{sys.executable}\n{PROGRAM}")
        self.program.chmod(0o755)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.write()
        self.opened = Opened(self.path, *{(self.path / name).parent for name in SECRETS})
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def write(self):
        path = self.path
        make_hostile(path, self.marks)
        make_hostile(path, self.marks, [name for name in module_names() if not (path / name).exists()])
        for number, name in enumerate(SECRETS):
            file = path / name
            if not (file.exists() or file.parent.is_file()):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"token = 'hunter2-{number}'\n")
        (path / "main.py").write_text(MAIN)
        (path / "cases.jsonl").write_text(json.dumps(CASE) + "\n")
        shutil.copyfile(BUNDLED[0].path, path / "obeyed-model.gguf")
        obeyed = {"model.name": "obeyed-model.gguf", "daemon.use": "start", "completion.max_tokens": 16}
        obeyed["remote.url"] = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        privacy = {"exclude_secrets": False, "exclude_patterns": ["!.env*"], "trusted_folders": ["/"]}
        obeyed |= {f"privacy.{key}": value for key, value in privacy.items()}
        make_hostile_settings(path, self.marks, **obeyed)
        self._write_others()
        self._write_programs()

    def _write_others(self):
        """What git, package tools, build tools and libraries read in a working directory."""
        path = self.path
        mark = f"sh -c 'echo > {self.marks}/%s'"
        for name in ("objects", "refs", "hooks"):
            (path / ".git" / name).mkdir(parents=True)
        (path / ".git/HEAD").write_text("ref: refs/heads/main\n")
        (path / ".git/config").write_text(
            "[core]\n\trepositoryformatversion = 0\n"
            + "".join(f'\t{key} = "{mark % f"git-{key}"}"\n' for key in ("fsmonitor", "sshCommand", "pager", "editor"))
            + f'\thooksPath = "{path}/.git/hooks"\n[credential]\n\thelper = "!{mark % "git-credential"}"\n'
        )
        for name in ("post-checkout", "post-index-change", "reference-transaction"):
            hook = path / ".git/hooks" / name
            hook.write_text(f"#!/bin/sh\n: > '{self.marks}/hook-{name}'\n")
            hook.chmod(0o755)
        (path / "worktree").mkdir()
        (path / "worktree/.git").write_text(f"gitdir: {path}/.git\n")
        (path / "Makefile").write_text(f"all:\n\t{mark % 'make'}\n%:\n\t{mark % 'make'}\n")
        (path / "pyproject.toml").write_text(
            "[build-system]\nrequires = []\nbuild-backend = 'conftest'\nbackend-path = ['.']\n[tool.pytest]\n"
        )
        (path / "setup.cfg").write_text("[metadata]\nname = attr: setup.x\n")
        (path / "traps.pth").write_text("import conftest\n")
        (path / "CMakeLists.txt").write_text(f"execute_process(COMMAND touch {self.marks}/cmake)\n")
        for name in ("matplotlibrc", "pip.conf", "pyvenv.cfg", ".pdbrc"):
            (path / name).write_text("text.usetex: True\n" if name == "matplotlibrc" else "import conftest\n")
        checkpoint = path / "checkpoint"
        make_hostile(checkpoint, self.marks, ("modeling_trap.py", "configuration_trap.py"))
        auto = {"AutoConfig": "configuration_trap.Config", "AutoModelForCausalLM": "modeling_trap.Model"}
        (checkpoint / "config.json").write_text(json.dumps({"architectures": ["Trap"], "auto_map": auto}))
        (checkpoint / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        (self.home / ".config/dg-lsp").mkdir(parents=True)
        (self.home / ".config/dg-lsp/dg-lsp.toml").write_text(
            f'[privacy]\naudit_log = "{path}/audit.jsonl"\n[completion]\ndeadline_ms = 60000\nearly_stop_ms = 0\n'
        )

    def _write_programs(self):
        """A program under the name of each one of this machine, and libraries under the names of llama.cpp's."""
        script = self.path / "trap.sh"
        script.write_text(f'#!/bin/sh\n: > "{self.marks}/program-${{0##*/}}"\nexit 1\n')
        script.chmod(0o755)
        folders = [Path(entry) for entry in os.get_exec_path() if Path(entry).is_dir()]
        for name in {*PROGRAMS, *(program.name for folder in folders for program in folder.iterdir())}:
            if not (self.path / name).exists():
                (self.path / name).symlink_to("trap.sh")
        if compiler := shutil.which("cc"):
            source = self.top / "library.c"
            source.write_text(LIBRARY % f"{self.marks}/library")
            for name in LIBRARIES:
                command = [compiler, "-shared", "-fPIC", "-o", str(self.path / name), str(source)]
                subprocess.run(command, check=True, capture_output=True)

    def environment(self):
        """Of a user without settings, with `.` on PATH; nothing outside this machine can be reached."""
        dead = "http://127.0.0.1:9"
        return {
            "PATH": f".::{self.top}/bin:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "OMP_WAIT_POLICY": "passive",
            "DG_LSP_DAEMON_DIR": str(self.home / "daemon"),
            "XDG_DATA_HOME": str(self.home / "data"),
            "PIP_NO_INDEX": "1",
            "HF_HUB_OFFLINE": "1",
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY", "HF_ENDPOINT"), dead),
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def triggered(self):
        """What was executed, opened and obeyed since the last call."""
        names = executed(self.marks)
        for name in names:  # a mark that was made meanwhile is for the next call
            (self.marks / name).unlink()
        return [f"executed {name}" for name in names] + [
            f"opened {name}" for name in self.opened.names() if name in NEVER_OPENED
        ]

    def check(self, what, output):
        """Counts what a run triggered, and what of a secret it printed."""
        self.figures.add("messages")
        for mark in self.triggered():
            self.figures.add("unexpected", f"{what}: {mark}")
        for word in ("obeyed-model", "hunter2", "Traceback"):
            if word in output:
                self.figures.add("unexpected", f"{what}: {output[-600:]}")

    def _accept(self):
        with suppress(OSError):
            while True:
                self.listener.accept()[0].close()
                (self.marks / "remote-server").touch()

    def close(self):
        # a thread that waits in accept is not woken by close
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.opened.close()


class Opened:
    """Names of the files of folders that any process opens, from Linux' inotify."""

    IN_OPEN, IN_NONBLOCK = 0x20, os.O_NONBLOCK

    def __init__(self, *folders):
        libc = ctypes.CDLL(None, use_errno=True)
        self.number = libc.inotify_init1(self.IN_NONBLOCK)
        for folder in folders:
            if self.number < 0 or libc.inotify_add_watch(self.number, os.fsencode(folder), self.IN_OPEN) < 0:
                raise OSError(ctypes.get_errno(), "inotify")

    def names(self):
        """Since the last call."""
        data = b""
        with suppress(BlockingIOError):
            while True:
                data += os.read(self.number, 1 << 16)
        names = set()
        while data:
            size = struct.unpack_from("iIII", data)[3]
            names.add(os.fsdecode(data[16 : 16 + size].rstrip(b"\0")))
            data = data[16 + size :]
        return sorted(names)

    def close(self):
        os.close(self.number)


# commands


def commands():
    """The words of every command, and its parameters."""
    return {words: load_command(words).params for words in COMMANDS}


def arguments_of(words, params):
    """Realistic arguments of a command: what it requires, and options."""
    arguments = []
    for param in params:
        is_argument = param.param_type_name == "argument"
        if param.required or (is_argument and param.metavar == "[INSTRUCTION]"):
            value = ARGUMENTS.get(param.metavar, "main.py")
            arguments += [value] if is_argument else [param.opts[0], value]
    return [*arguments, *OPTIONS.get(words, ())]


def run_command(folder, words, arguments, *, is_module=False):
    """Runs a command to its end; one that goes on is terminated when it is ready."""
    start = ["-P", "-m", "dg_lsp"] if is_module else [str(folder.program)]
    what = f"{words} {' '.join(arguments)}{' (-m)' * is_module}"
    output = folder.top / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *start, *words.split(), *arguments],
            cwd=folder.path,
            env=folder.environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    end = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < end:
        if words in FOREVER and any(part in output.read_text(errors="replace") for part in LASTING):
            process.terminate()
        time.sleep(0.02)
    text = output.read_text(errors="replace")
    if process.poll() is None:
        process.kill()
        folder.figures.add("lost", f"{what}: still running after {LIMIT:.0f} s: {text[-300:]}")
    elif process.returncode < 0 and not (words in FOREVER and process.returncode == -signal.SIGTERM):
        folder.figures.add("crashes", f"{what}: {process.returncode} {text[-300:]}")
    folder.check(what, text)
    (folder.path / "main.py").write_text(MAIN)  # what `--write` has changed


# language servers

LINES = {"start": {"line": 6, "character": 0}, "end": {"line": 9, "character": 0}}


def run_server(folder, what, argv, cwd, options):
    """An editor's session in the folder: files, completions, rewrites, code actions and commands."""
    with closing(Launcher(cwd)) as launcher:
        client = launcher.launch(argv, **folder.environment())
        result = client.handshake({}, {**PATIENT, **options}, folder.path.as_uri())
        uri = (folder.path / "main.py").as_uri()
        client.open(MAIN, uri=uri)
        client.open("from main import Basket\n", uri=(folder.path / "other.py").as_uri())
        if not client.texts(8, 21, uri=uri, kind=client.INVOKED):
            folder.figures.add("lost", f"{what}: no completion")
        client.actions(LINES, uri=uri)
        for name in result["capabilities"]["executeCommandProvider"]["commands"]:
            client.answer(client.command(name, uri, range=LINES, position=LINES["start"], instruction="rename owner"))
        if client.leave() != 0:
            folder.figures.add("crashes", f"{what}: {client.stderr[-300:]}")
        answered = {message.get("id") for message in client.messages if "method" not in message}
        for msg_id in set(client.requested) - answered:
            folder.figures.add("lost", f"{what}: {msg_id}")
        folder.check(what, client.stderr + json.dumps(client.messages))
    (folder.path / "main.py").write_text(MAIN)


def sessions(folder):
    """How editors start the server: what, command, working directory, options."""
    installed = [sys.executable, str(folder.program), "lsp"]
    yield "VS Code, restricted", [str(folder.program), "lsp", "--stdio"], folder.home, {"isTrusted": False}
    yield "Neovim", ["dg-lsp", "lsp", "--stdio"], folder.home, {}
    yield "an editor that starts it in the folder", [*installed, "--stdio"], folder.path, {}
    yield "with a daemon", [*installed, "--daemon", "start"], folder.path, {}
    no_daemon = [shutil.which("env"), f"DG_LSP_DAEMON_DIR={folder.program}", *installed, "--daemon", "start"]
    yield "instead of a daemon, which has no folder", no_daemon, folder.path, {}
    yield "python -P -m dg_lsp", [sys.executable, "-P", "-m", "dg_lsp", "lsp"], folder.path, {}


# the campaign

NUM_SHORT = 7 + len(commands())
"""The sessions, a stop of the daemon, and each command as the installed program."""


def everything(folder, rng):
    """Everything there is to do: functions of the folder."""
    for what, argv, cwd, options in sessions(folder):
        yield partial(run_server, what=what, argv=argv, cwd=cwd, options=options)
    stop = partial(run_command, words="daemon stop", arguments=[])
    yield stop
    for is_module in (False, True):
        runs = [(words, arguments_of(words, params)) for words, params in commands().items()]
        rng.shuffle(runs)
        for words, arguments in runs:
            yield partial(run_command, words=words, arguments=arguments, is_module=is_module)
        yield stop


def campaign(figures, folder, seed):
    """Runs all sessions, checks and commands once, or the first `NUM_SHORT` in the shortest run."""
    with closing(Folder(folder, figures)) as traps:
        most = NUM_SHORT if figures.most <= NUM_SHORT else None
        for call in itertools.islice(everything(traps, random.Random(seed)), most):
            if most is None and figures.has_ended():
                break
            call(traps)
            figures.sample(1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
        run_command(traps, "daemon stop", [])
