"""Every attack by its id: what it is against, what is tried, how it ends, and where it must have been tried."""

from typing import NamedTuple

LAPTOP, CONTAINER, POD, PLAIN = "laptop", "container", "pod", "no sandbox"
PLACES = (LAPTOP, CONTAINER, POD, PLAIN)
"""``laptop``: ``make test-all``, with bubblewrap where programs run. ``container``: podman. ``pod``: a real cluster."""


class Attack(NamedTuple):
    """``end`` is "stopped", or "marked": the label of integrity or the notes of the result show it."""

    against: str
    tries: str
    places: tuple[str, ...]
    end: str = "stopped"


FAMILIES = (
    *("files", "machinery", "programs", "patched-programs", "values", "inside", "build-daemon", "report-token"),
)
"""Those of many programs each, which are marked where the programs are listed."""
_EVERYWHERE = PLACES
_ISOLATED = (LAPTOP, CONTAINER, POD)

ATTACKS: dict[str, Attack] = {
    "files": Attack(
        "the score",
        "tests, fixtures, plugins, configuration, bytecode, links and daemons around tests, planted or rewritten",
        _EVERYWHERE,
    ),
    "machinery": Attack(
        "the score",
        "code under test that reaches into pytest, pluggy, unittest, hooks, traces, imports or builtins",
        _EVERYWHERE,
        "marked",
    ),
    "programs": Attack(
        "the score", "programs and shell lines that exit early, or whose files are changed", _EVERYWHERE
    ),
    "patched-programs": Attack(
        "the score", "programs that patch the code that decides their exit status", _EVERYWHERE, "marked"
    ),
    "values": Attack("the score", "values that are equal to everything", _EVERYWHERE, "marked"),
    "inside": Attack("the score", "code inside pytest's process that forges lines, skips or exits", _EVERYWHERE),
    "build-daemon": Attack(
        "the score", "a daemon that a build command left behind rewrites the hidden test", _ISOLATED
    ),
    "report-token": Attack(
        "the score", "the report forged with the token from the runner's descriptors, memory, or by ptrace", _ISOLATED
    ),
    "shared-objects": Attack(
        "the score",
        "System V objects, /dev/shm, host names and /etc files left by the sandbox for the tests to find",
        _ISOLATED,
    ),
    "protected-files": Attack(
        "the score",
        "protected and hidden files changed by shells, links, archives, mounts or the debugger",
        (LAPTOP, CONTAINER, PLAIN),
    ),
    "impostor": Attack(
        "the score", "a program on the sidecar's port, once the sidecar has ended, answers Resolved", (LAPTOP, POD)
    ),
    "tokens": Attack(
        "the score",
        "a call of another role, a repeated request, an outcome with a foreign signature, the digest of a token",
        (LAPTOP,),
    ),
    "flood": Attack(
        "the score", "connections with unfinished headers, until the sidecar dies of its memory", (LAPTOP, POD)
    ),
    "stalled-runner": Attack(
        "the score",
        "the runner stalled or replaced: no answer, an endless answer, an answer that breaks the protocol",
        (LAPTOP,),
    ),
    "starved-runner": Attack(
        "the score", "memory, descriptors, stack and file size taken from the runner by prlimit", (LAPTOP, CONTAINER)
    ),
    "patch-review": Attack(
        "the score",
        "a test process deceived from inside: frames, foreign members, import hooks, comparison methods, exits",
        (LAPTOP,),
        "marked",
    ),
    "killed-sandbox": Attack(
        "the score", "the sandbox killed under a step: signals, memory, processes, disk, 300 MB of changes", _ISOLATED
    ),
    "tests-changed": Attack(
        "the score", "changed tests and configuration, planted hooks, a read history", (LAPTOP,), "marked"
    ),
    "host-build": Attack(
        "your machine", "a source distribution that would be built, or run its package, outside the sandbox", (LAPTOP,)
    ),
    "host-interpreter": Attack("your machine", "an interpreter that lies in the repository", (LAPTOP,)),
    "foreign-repository": Attack(
        "your machine", "filters, hooks and settings of a git repository whose commits are exported", (LAPTOP,)
    ),
    "trajectory": Attack("your machine", "a trajectory that names tools to import, or a manifest to follow", (LAPTOP,)),
    "local-path": Attack("your machine", "`localPath` that leads out of the manifest's directory", (LAPTOP,)),
    "system-calls": Attack(
        "your machine", "keyctl, ptrace of others, io_uring, userfaultfd, bpf, mount, new namespaces", (LAPTOP,)
    ),
    "your-files": Attack("your machine", "files, keys, variables and processes of the machine", (LAPTOP, CONTAINER)),
    "terminal": Attack(
        "your terminal, your spreadsheet", "escape sequences in what is printed, formulas in cells", (LAPTOP,)
    ),
    "page": Attack(
        "your browser", "results with markup, links and paths that lead out; other sites that ask `dgym ui`", (LAPTOP,)
    ),
    "parsers": Attack(
        "memory and time",
        "configuration files that take a parser gigabytes or hours, or break it: long keys, numbers and nesting",
        (LAPTOP,),
    ),
    "slow-text": Attack(
        "memory and time", "commands, calls and output on which a backtracking expression takes days", (LAPTOP,)
    ),
    "openers": Attack(
        "memory and time",
        "devices, pipes, links that lead out and sparse files in place of files that dgym reads",
        (LAPTOP,),
    ),
    "bombs": Attack(
        "memory and disk", "archives and git repositories that grow or lead outside, endless model replies", (LAPTOP,)
    ),
    "cache": Attack("other tenants", "sources that another namespace has fetched, from the cache", (LAPTOP,)),
    "author": Attack(
        "the cluster",
        "labels, annotations, tolerations, RuntimeClass, templates, images and priorities beyond the allowed",
        (LAPTOP, POD),
    ),
    "text-in-pods": Attack("the cluster", "texts of a task that would change the pod's manifest", (LAPTOP,)),
    "egress": Attack("the network", "connections to the API server, kubelet, operator, services and DNS", _ISOLATED),
    "internal-sources": Attack(
        "the network",
        "sources at addresses of the cluster or of its metadata, also by IPv6 gateways and tunnels",
        (LAPTOP,),
    ),
    "unenforced": Attack("the network", "a network that ignores NetworkPolicies: `helm test` fails", (LAPTOP, POD)),
    "changed-pod": Attack("the cluster", "an operator that was taken over makes pods with more rights", (LAPTOP,)),
    "rights": Attack(
        "the cluster", "a right that is missing, or granted and never used, by the audit log of a whole run", (POD,)
    ),
    "secrets": Attack(
        "keys and tokens",
        "any Secret or derived token in a log, Event, status, pod specification, trajectory or result",
        (LAPTOP, POD),
    ),
}
