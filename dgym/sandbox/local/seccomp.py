"""The seccomp filter of sandboxes under bubblewrap: system calls that reach beyond a sandbox are refused.

A program in a namespace still talks to the machine's own kernel. Refused are the calls by which it could read another
process, use the user's keys, make namespaces and mounts of its own, or drive rarely used parts of the kernel. A refused
call fails with EPERM; those that libraries try first and can do without fail with ENOSYS, as on an older kernel.

The filter is a program for the kernel's classic BPF machine: see seccomp(2), and ``seccomp_data`` in
``linux/seccomp.h`` for the offsets.
"""

import errno
import os
import struct
from collections.abc import Sequence
from typing import IO, NamedTuple

REFUSED = {
    # Keys of the user's session, which belong to no namespace.
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "request_key": (249, 218),
    # Memory, registers and descriptors of other processes, the runner's among them.
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    # Parts of the kernel that few programs use and many exploits do.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    # Mounts, namespaces, and files by handles, which pass by mounts.
    "chroot": (161, 51),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "umount2": (166, 39),
    # The machine as a whole.
    "acct": (163, 89),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
}
"""Calls that fail with EPERM: their numbers on x86_64 and aarch64."""

ABSENT = {
    # Its flags are in memory, where no filter sees them: the C library falls back to clone.
    "clone3": (435, 435),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
}
"""Calls that fail with ENOSYS."""

# Their first argument decides: new namespaces are refused.
_WITH_FLAGS = {"clone": (56, 220), "unshare": (272, 97)}
# NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
NAMESPACES = 0x80 | 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000

# Their second argument decides: characters are not pushed into the input of a terminal.
_WITH_COMMAND = {"ioctl": (16, 29)}
TIOCSTI, TIOCLINUX = 0x5412, 0x541C

# Their first argument decides: other families reach drivers and the host of a virtual machine (AF_ALG, AF_VSOCK).
_WITH_FAMILY = {"socket": (41, 198), "socketpair": (53, 199)}
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}

# The limits of another process, the runner's among them, can be read and not set: the first argument is the process, 0
# for the caller, and the third points to new limits.
_WITH_PROCESS = {"prlimit64": (302, 261)}

# By the name that the kernel gives its machine: the architecture of a call, and which of the numbers are its own.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32 = 0x40000000

ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, ABSENT_HERE, NO_FAMILY = (0x50000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))

_LOAD, _RETURN = 0x20, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32


class _Instruction(NamedTuple):
    """One instruction; a jump without a label goes to the next one."""

    code: int
    operand: int
    yes: str = ""
    no: str = ""


def is_supported() -> bool:
    """Whether there is a filter for this machine."""
    return os.uname().machine in _MACHINES


def open_filter() -> IO[bytes]:
    """The filter for this machine as a file from which ``bwrap --seccomp`` reads it."""
    file = os.fdopen(os.memfd_create("seccomp", os.MFD_CLOEXEC), "w+b")
    file.write(filter_program(os.uname().machine))
    file.seek(0)
    return file


def call_number(name: str, machine: str) -> int | None:
    """The number of a system call named in this module; None where the machine has no such call."""
    numbers = {**REFUSED, **ABSENT, **_WITH_FLAGS, **_WITH_COMMAND, **_WITH_FAMILY, **_WITH_PROCESS}[name]
    return numbers[_MACHINES[machine][1]]


def filter_program(machine: str) -> bytes:
    """The filter for a machine, named as by ``uname``: an array of ``struct sock_filter``."""
    architecture, _ = _MACHINES[machine]
    tests = (
        *((_WITH_FLAGS, "flags"), (_WITH_COMMAND, "command"), (_WITH_FAMILY, "family"), (_WITH_PROCESS, "process")),
        *((REFUSED, "refuse"), (ABSENT, "absent")),
    )
    numbered = [(call_number(name, machine), label) for names, label in tests for name in names]
    return _assemble(
        [
            # Calls of another architecture (32-bit programs) have other numbers.
            _Instruction(_LOAD, _ARCHITECTURE),
            _Instruction(_IF_EQUAL, architecture, no="kill"),
            _Instruction(_LOAD, _NUMBER),
            # Calls of x32 have the architecture of x86_64 and numbers of their own.
            *([_Instruction(_IF_AT_LEAST, _X32, yes="absent")] if machine == "x86_64" else []),
            *(_Instruction(_IF_EQUAL, number, yes=label) for number, label in numbered if number is not None),
            _Instruction(_RETURN, ALLOW),
            "flags",
            _Instruction(_LOAD, _FIRST),
            _Instruction(_IF_ANY_BIT, NAMESPACES, yes="refuse", no="allow"),
            "command",
            _Instruction(_LOAD, _SECOND),
            _Instruction(_IF_EQUAL, TIOCSTI, yes="refuse"),
            _Instruction(_IF_EQUAL, TIOCLINUX, yes="refuse"),
            _Instruction(_RETURN, ALLOW),
            "family",
            _Instruction(_LOAD, _FIRST),
            *(_Instruction(_IF_EQUAL, family, yes="allow") for family in FAMILIES.values()),
            _Instruction(_RETURN, NO_FAMILY),
            "process",
            _Instruction(_LOAD, _FIRST),
            _Instruction(_IF_EQUAL, 0, yes="allow"),
            *(
                instruction
                for half in (_THIRD, _THIRD + 4)
                for instruction in (_Instruction(_LOAD, half), _Instruction(_IF_EQUAL, 0, no="refuse"))
            ),
            "allow",
            _Instruction(_RETURN, ALLOW),
            "refuse",
            _Instruction(_RETURN, REFUSE),
            "absent",
            _Instruction(_RETURN, ABSENT_HERE),
            "kill",
            _Instruction(_RETURN, KILL),
        ]
    )


def _assemble(program: Sequence[_Instruction | str]) -> bytes:
    """Encode a program in which a label stands before the instruction it names; jumps lead forward only."""
    instructions: list[_Instruction] = []
    labels: dict[str, int] = {}
    for item in program:
        if isinstance(item, str):
            labels[item] = len(instructions)
        else:
            instructions.append(item)
    return b"".join(
        struct.pack("=HBBI", code, *(labels[to] - at - 1 if to else 0 for to in (yes, no)), operand)
        for at, (code, operand, yes, no) in enumerate(instructions)
    )
