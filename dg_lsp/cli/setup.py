"""`dg-lsp setup`: the llama.cpp, the model and the editor settings for this machine, after one question."""

import json
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.cli import conversion
from dg_lsp.cli.default_model import forget
from dg_lsp.cli.loading import configure
from dg_lsp.cli.printing import agrees, print_line, print_lines, size_text
from dg_lsp.cli.pull import Pull, try_model
from dg_lsp.cli.recommend import (
    Measurement,
    Recommendation,
    llama_devices,
    machine_lines,
    measure,
    recommended,
    table,
    unused_message,
)
from dg_lsp.errors import ModelError, UsageError
from dg_lsp.models import build_runtime
from dg_lsp.models.gpus import Gpu
from dg_lsp.models.registry import AUTO, BUNDLED
from dg_lsp.models.selection import RankedModel, rank_models, rewrite_preset
from dg_lsp.settings import CompletionSettings


def set_up(*, is_agreed: bool) -> None:
    """Shows the plan, asks unless the user agreed already, and does it."""
    configure({})
    measured = measure()
    plan = Plan.make(measured)
    print_lines(plan.lines())
    if not is_agreed and not sys.stdin.isatty():
        raise UsageError("there is no terminal for the question: pass --yes if you agree to this plan")
    if not (is_agreed or agrees("Do this?", by_default=True)):
        print_line("nothing was changed: these settings are for the bundled model, which is here already")
        print_lines(editor_settings(AUTO, rank_models(measured.machine, BUNDLED)[0]))
        return
    if plan.build_for is not None:
        if not make_llama_cpp(plan.build_for, plan.backend):
            print_line("going on without the GPU", err=True)
        plan = Plan(measure(), None, "", "")  # the GPU may have less free memory than it has
    model = plan.model
    name = AUTO if model.preset in BUNDLED else model.name
    if model.preset not in BUNDLED and (pull := Pull(model.preset)).stages:
        pull.run(None)
    else:
        forget()  # `auto` measures again
        try_model(name)
    print_lines(editor_settings(name, model))


@dataclass(frozen=True, slots=True)
class Plan:
    """What `setup` does on a measured machine."""

    measured: Measurement
    build_for: Gpu | None  # the GPU that needs another llama.cpp
    backend: str  # of that llama.cpp; empty if none can be made here
    problem: str  # why the fastest backend for this GPU cannot be compiled, with a next step

    @classmethod
    def make(cls, measured: Measurement) -> "Plan":
        """A wheel is only known when it is searched, so a backend without its tools is planned if no other has them."""
        gpu = measured.unused
        if gpu is None:
            return cls(measured, None, "", "")
        problems = {}
        for backend in gpu.backends:
            try:
                build_runtime.check_tools(backend)
            except (ModelError, UsageError) as error:
                problems[backend] = str(error)
        backend = next((name for name in gpu.backends if name not in problems), gpu.backends[0])
        return cls(measured, gpu, backend, problems.get(gpu.backends[0], ""))

    @property
    def recommendation(self) -> Recommendation:
        """The models for this machine once llama.cpp uses its GPU."""
        machine = self.measured.machine_after_setup if self.build_for else self.measured.machine
        return recommended(machine)

    @property
    def model(self) -> RankedModel:
        """The model to set up."""
        return self.recommendation.best

    def lines(self) -> Iterator[str]:
        """The machine, and what will be done."""
        yield from machine_lines(self.measured)
        yield ""
        yield from table(self.recommendation)
        yield ""
        if self.build_for is not None:
            yield f"llama.cpp for {self.build_for.name}: a prebuilt wheel from pip's"
            yield f"  package index; without one it is compiled here for {self.backend}, in minutes"
            if self.problem:
                yield f"  {self.problem}"
        preset = self.model.preset
        if preset in BUNDLED:
            yield f"{preset.name} is bundled: there is nothing to fetch"
        elif (pull := Pull(preset)).stages:
            yield f"{preset.name} ({preset.licence}, from {preset.repository or 'a package index'})"
            yield from pull.announcement()
        else:
            yield f"{preset.name} is on this machine already"
        machine = self.measured.machine_after_setup if self.build_for else self.measured.machine
        if (other := rewrite_preset(machine, self.model)) is not None:
            size = size_text(other.memory_bytes)
            yield f"there is room for {other.name} beside it, {size}, for rewrites and chats:"
            yield f'  dg-lsp models pull {other.name}, then set rewrite.model = "{other.name}"'


def make_llama_cpp(gpu: Gpu, backend: str) -> bool:
    """Gets a llama.cpp that uses the GPU: a wheel, else compiled. Reports failures; returns whether it lists a GPU."""
    from dg_lsp.models.build_runtime import BuildOptions, install_wheel

    with conversion.steps() as show_step:
        problem = install_wheel(gpu.backends, lists_gpu, show_step)
    if not problem and lists_gpu():
        print_line(f"installed a prebuilt llama.cpp for {gpu.name}", err=True)
        return True
    problem = problem or "an earlier build of llama.cpp is loaded instead of the wheel"
    print_line(f"{problem}: compiling it for {backend}", err=True)
    try:
        conversion.make_runtime(BuildOptions(backend=backend))
        if lists_gpu():
            return True
        problem = "it lists no GPU: check the driver (docs/howto/gpu.md)"
    except (ModelError, UsageError) as error:
        problem = str(error)
    print_line(f"warning: {unused_message(gpu)}", err=True)
    print_line(f"llama.cpp for {backend}: {problem}", err=True)
    return False


def lists_gpu(folder: Path | None = None) -> bool:
    """Whether llama.cpp, or the one in a folder, lists a GPU."""
    try:
        listed = llama_devices(folder=str(folder or ""))["devices"]
    except ModelError:
        return False
    return any(device["kind"] in ("gpu", "igpu") for device in listed)


def editor_settings(name: str, model: RankedModel) -> str:
    """Settings for editors, with the paths of this installation.

    The deadline is the default, or what the first line in a file takes by the model's estimate, if that is more.
    """
    beside = Path(sys.executable).with_name("dg-lsp.exe" if sys.platform == "win32" else "dg-lsp")
    program = str(beside) if beside.is_file() else shutil.which("dg-lsp") or "dg-lsp"
    wait_ms = max(CompletionSettings().deadline_ms, math.ceil(model.first_ms / 500) * 500.0)
    path, named = json.dumps(program), json.dumps(name)
    return f"""
VS Code, settings.json:
  "dg-lsp.server.path": {path},
  "dg-lsp.model.name": {named},
  "dg-lsp.completion.deadline_ms": {wait_ms:g},

Neovim, init.lua:
  vim.lsp.config("dg_lsp", {{
    cmd = {{ {path}, "lsp", "--stdio" }},
    init_options = {{ model = {{ name = {named} }}, completion = {{ deadline_ms = {wait_ms:g} }} }},
  }})

on the command line: {program} fill FILE:LINE --model {name}"""
