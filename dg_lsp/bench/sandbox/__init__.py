"""Runs a program that a model wrote, and says whether it ran to its end.

The program gets a Python process of its own with the standard library alone, an empty environment, no standard input
and an empty temporary directory. Layers stand between it and the machine; each is put up where the system has it:

    namespaces     a network of its own without a wire; all of the file system read-only but the directory; processes
                   of its own, which the kernel ends together with the first one
    limits         CPU and wall time, address space, size of a file, open files, processes
    capabilities   root's privileges are given up
    landlock       only the directory may be written; only Python and the system's libraries may be read
    seccomp        no processes, threads, sockets or signals; no modes or owners changed; no doors of the kernel
    audit          the same once more inside Python: refusals before the system is asked

What is covered: what a program does by mistake, and, with landlock and seccomp (Linux 5.13 and later on x86-64 and
64-bit ARM), what it does on purpose.
What is not covered: how much it writes into its own directory within its time; holes in the kernel. Without landlock
and seccomp (macOS, other processors) only the limits and the checks inside Python are left, and a program that sets
out to get around these can: `Sandbox.check` says which layers hold. A program that sets out to look as if it had run
to its end can do that always: it is judged inside its own process.
"""

from dg_lsp.bench.sandbox.sandbox import LAYERS, Ending, Limits, Outcome, Sandbox

__all__ = ["LAYERS", "Ending", "Limits", "Outcome", "Sandbox"]
