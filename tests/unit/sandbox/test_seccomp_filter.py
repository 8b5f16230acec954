"""Tests of the seccomp filter. A small interpreter of the kernel's BPF machine runs it for each system call."""

import errno
import os
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dgym.sandbox.local import _bubblewrap
from dgym.sandbox.local._bubblewrap import ABSENT, ALLOW, KILL, REFUSED, TIOCLINUX, TIOCSTI, call_number, filter_program

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
EPERM, ENOSYS, NO_FAMILY = (0x50000 | each for each in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
NEW_NAMESPACES = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
BY_ARGUMENT = ("clone", "unshare", "ioctl", "socket", "socketpair", "prlimit64")
WORD = st.integers(0, 2**32 - 1)
LONG = st.integers(0, 2**64 - 1)


def outcome(program, *, architecture, number, arguments=()):
    """Run the filter for one system call (``struct seccomp_data`` of a little-endian machine) and return its result."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = None, 0
    while True:
        code, yes, no, operand = instructions[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
            continue
        holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: accumulator & operand != 0}[code]
        at += yes if holds else no


def of(machine, name, *arguments):
    number = call_number(name, machine)
    return outcome(filter_program(machine), architecture=ARCHITECTURES[machine], number=number, arguments=arguments)


@pytest.fixture(params=ARCHITECTURES)
def machine(request):
    return request.param


@pytest.mark.parametrize(("names", "answer"), [(REFUSED, EPERM), (ABSENT, ENOSYS)])
def test_every_call_of_the_tables_is_refused(machine, names, answer):
    there = [name for name in names if call_number(name, machine) is not None]
    assert len(there) >= len(names) - 2
    assert {name: of(machine, name) for name in there} == dict.fromkeys(there, answer)


def test_no_two_calls_have_one_number(machine):
    names = [*REFUSED, *ABSENT, *BY_ARGUMENT]
    numbers = [number for name in names if (number := call_number(name, machine)) is not None]
    assert len(set(numbers)) == len(numbers)


@given(LONG, st.sampled_from(("clone", "unshare")), st.sampled_from(tuple(ARCHITECTURES)))
@example(0x1200011, "clone", "x86_64")  # fork
@example(0x3D0F00, "clone", "x86_64")  # a thread
@example(0x400, "unshare", "x86_64")  # CLONE_FILES
def test_processes_and_threads_start_without_new_namespaces_only(flags, name, machine):
    new = any(flags & flag for flag in NEW_NAMESPACES)
    assert of(machine, name, flags) == (EPERM if new else ALLOW)


@given(LONG, st.sampled_from(tuple(ARCHITECTURES)))
@example(TIOCSTI, "x86_64")
@example(TIOCLINUX | 1 << 32, "aarch64")  # the kernel reads 32 bits
@example(0x5401, "x86_64")
def test_ioctls_that_insert_terminal_input_are_refused(command, machine):
    assert of(machine, "ioctl", 1, command) == (EPERM if command % 2**32 in (TIOCSTI, TIOCLINUX) else ALLOW)


@given(LONG, st.sampled_from(("socket", "socketpair")), st.sampled_from(tuple(ARCHITECTURES)))
@example(socket.AF_INET, "socket", "aarch64")
@example(38, "socket", "x86_64")  # AF_ALG
@example(40, "socket", "x86_64")  # AF_VSOCK
def test_sockets_of_four_families_only(family, name, machine):
    # The kernel reads 32 bits.
    known = family % 2**32 in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
    assert of(machine, name, family) == (ALLOW if known else NO_FAMILY)


@given(LONG, st.integers(0, 15), LONG, st.sampled_from(tuple(ARCHITECTURES)))
@example(0, 7, 0x7FFF00000000, "x86_64")
@example(1, 7, 0x7FFF00000000, "x86_64")
@example(1, 7, 0, "aarch64")
def test_limits_of_another_process_are_read_and_not_set(process, resource, limits, machine):
    own, reads = process % 2**32 == 0, limits == 0
    assert of(machine, "prlimit64", process, resource, limits) == (ALLOW if own or reads else EPERM)


@given(WORD, WORD, st.lists(LONG, max_size=6), st.sampled_from(tuple(ARCHITECTURES)))
def test_calls_of_another_architecture_kill(architecture, number, arguments, machine):
    if architecture != ARCHITECTURES[machine]:
        program = filter_program(machine)
        assert outcome(program, architecture=architecture, number=number, arguments=arguments) == KILL


@given(st.integers(0x40000000, 2**32 - 1))
@example(0x40000000 | 101)  # ptrace
def test_calls_of_x32_do_not_exist(number):
    assert outcome(filter_program("x86_64"), architecture=ARCHITECTURES["x86_64"], number=number) == ENOSYS


@given(st.integers(0, 0x3FFFFFFF), st.lists(LONG, max_size=6), st.sampled_from(tuple(ARCHITECTURES)))
@example(0, [], "x86_64")
@example(59, [], "x86_64")  # execve
@example(57, [], "x86_64")  # fork
def test_all_other_calls_are_allowed(number, arguments, machine):
    named = {call_number(name, machine) for name in (*REFUSED, *ABSENT, *BY_ARGUMENT)}
    if number not in named:
        program = filter_program(machine)
        assert outcome(program, architecture=ARCHITECTURES[machine], number=number, arguments=arguments) == ALLOW


def test_the_kernel_would_load_it(machine):
    """Check that every jump leads to an instruction of the program, and that the last instruction returns."""
    instructions = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    assert len(instructions) < 4096
    for at, (code, yes, no, _) in enumerate(instructions):
        assert code in (0x06, 0x15, 0x20, 0x35, 0x45)
        assert at + 1 + max(yes, no) < len(instructions) or code == 0x06
    assert instructions[-1][0] == 0x06


def test_numbers_are_those_of_this_machines_headers():
    headers = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not headers.exists():
        pytest.skip("the kernel's headers are not installed")
    known = dict(line.split()[1:3] for line in headers.read_text().splitlines() if line.startswith("#define __NR_"))
    for name in (*REFUSED, *ABSENT, *BY_ARGUMENT):
        assert known.get(f"__NR_{name}", str(call_number(name, "x86_64"))) == str(call_number(name, "x86_64"))


def test_this_machine_has_a_filter():
    assert _bubblewrap.is_supported()
    with _bubblewrap.open_filter() as file:
        assert file.read() == filter_program(os.uname().machine)
