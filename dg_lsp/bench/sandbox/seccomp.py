"""Which system calls the process may make, held by the kernel. Runs inside the sandboxed process. Needs no privileges.

A refused call fails with EPERM, which Python raises as PermissionError. Calls younger than the table fail with ENOSYS,
as on an older kernel.
"""

import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Iterator

from dg_lsp.bench.sandbox.kernel import PR_SET_SECCOMP, forgo_privileges, prctl

MODE_FILTER = 2
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER_AT, ARCHITECTURE_AT = 0, 4
"""Offsets in `struct seccomp_data`."""

X32 = 0x40000000
FIRST_UNKNOWN = 452
"""Numbers from here on are the same on all processors; `fchmodat2` is the first one."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED: dict[str, dict[str, str]] = {
    "x86_64": {
        "processes and threads": "fork 57 vfork 58 clone 56 clone3 435 execve 59 execveat 322",
        "other processes": "kill 62 tkill 200 tgkill 234 rt_sigqueueinfo 129 rt_tgsigqueueinfo 297 pidfd_open 434 "
        "pidfd_getfd 438 pidfd_send_signal 424 process_madvise 440 process_mrelease 448 process_vm_readv 310 "
        "process_vm_writev 311 ptrace 101 kcmp 312 prlimit64 302 setpriority 141 ioprio_set 251 "
        "sched_setaffinity 203 sched_setscheduler 144 sched_setparam 142 sched_setattr 314 move_pages 279 "
        "migrate_pages 256",
        "network": "socket 41 socketpair 53 io_uring_setup 425 io_uring_enter 426 io_uring_register 427",
        "memory beyond the limit": "shmget 29 semget 64 msgget 68 mq_open 240 memfd_create 319 memfd_secret 447",
        "files by their path, beside Landlock": "chmod 90 fchmod 91 fchmodat 268 chown 92 fchown 93 lchown 94 "
        "fchownat 260 utime 132 utimes 235 futimesat 261 utimensat 280 setxattr 188 lsetxattr 189 fsetxattr 190 "
        "removexattr 197 lremovexattr 198 fremovexattr 199 truncate 76",
        "doors of the kernel": "unshare 272 setns 308 chroot 161 mount 165 umount2 166 pivot_root 155 "
        "mount_setattr 442 move_mount 429 open_tree 428 fsopen 430 fsmount 432 fsconfig 431 fspick 433 bpf 321 "
        "perf_event_open 298 userfaultfd 323 keyctl 250 add_key 248 request_key 249 open_by_handle_at 304 "
        "fanotify_init 300 swapon 167 swapoff 168 reboot 169 init_module 175 finit_module 313 delete_module 176 "
        "kexec_load 246 kexec_file_load 320 iopl 172 ioperm 173 modify_ldt 154 personality 135",
    },
    "aarch64": {
        "processes and threads": "clone 220 clone3 435 execve 221 execveat 281",
        "other processes": "kill 129 tkill 130 tgkill 131 rt_sigqueueinfo 138 rt_tgsigqueueinfo 240 pidfd_open 434 "
        "pidfd_getfd 438 pidfd_send_signal 424 process_madvise 440 process_mrelease 448 process_vm_readv 270 "
        "process_vm_writev 271 ptrace 117 kcmp 272 prlimit64 261 setpriority 140 ioprio_set 30 "
        "sched_setaffinity 122 sched_setscheduler 119 sched_setparam 118 sched_setattr 274 move_pages 239 "
        "migrate_pages 238",
        "network": "socket 198 socketpair 199 io_uring_setup 425 io_uring_enter 426 io_uring_register 427",
        "memory beyond the limit": "shmget 194 semget 190 msgget 186 mq_open 180 memfd_create 279 memfd_secret 447",
        "files by their path, beside Landlock": "fchmod 52 fchmodat 53 fchown 55 fchownat 54 utimensat 88 setxattr 5 "
        "lsetxattr 6 fsetxattr 7 removexattr 14 lremovexattr 15 fremovexattr 16 truncate 45",
        "doors of the kernel": "unshare 97 setns 268 chroot 51 mount 40 umount2 39 pivot_root 41 mount_setattr 442 "
        "move_mount 429 open_tree 428 fsopen 430 fsmount 432 fsconfig 431 fspick 433 bpf 280 perf_event_open 241 "
        "userfaultfd 282 keyctl 219 add_key 217 request_key 218 open_by_handle_at 265 fanotify_init 262 swapon 224 "
        "swapoff 225 reboot 142 init_module 105 finit_module 273 delete_module 106 kexec_load 104 "
        "kexec_file_load 294 personality 92",
    },
}
"""Name and number of each, from the kernel's headers."""


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def restrict() -> None:
    """From here on, refused calls fail.

    Raises:
        OSError: another processor, or a kernel without seccomp.
    """
    processor = platform.machine()
    if sys.platform != "linux" or processor not in REFUSED or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError("no table of system calls for this machine")
    instructions = b"".join(_filter(processor))
    forgo_privileges()
    prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(_Program(len(instructions) // 8, instructions)))


def refused_numbers(processor: str) -> list[int]:
    """Of the table, ascending."""
    return sorted(int(number) for group in REFUSED[processor].values() for number in group.split()[1::2])


def _filter(processor: str) -> Iterator[bytes]:
    """Berkeley packet filter, one instruction at a time; jumps count the instructions that are left out."""
    numbers = refused_numbers(processor)
    yield _instruction(LOAD, ARCHITECTURE_AT)
    yield _instruction(JUMP_IF_EQUAL, ARCHITECTURES[processor], if_true=1)
    yield _instruction(RETURN, KILL_PROCESS)
    yield _instruction(LOAD, NUMBER_AT)
    yield _instruction(JUMP_IF_AT_LEAST, X32, if_true=len(numbers) + 2)
    yield _instruction(JUMP_IF_AT_LEAST, FIRST_UNKNOWN, if_true=len(numbers) + 2)
    for i, number in enumerate(numbers):
        yield _instruction(JUMP_IF_EQUAL, number, if_true=len(numbers) - i)
    yield _instruction(RETURN, ALLOW)
    yield _instruction(RETURN, ERRNO | errno.EPERM)
    yield _instruction(RETURN, ERRNO | errno.ENOSYS)


def _instruction(code: int, value: int, *, if_true: int = 0) -> bytes:
    """`struct sock_filter`."""
    return struct.pack("=HBBI", code, if_true, 0, value)
