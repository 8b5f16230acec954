"""Read-only and hidden files by every route, and what must come of it in whatever sandbox the agent works."""

import msgspec

import dgym
from dgym.api import DebugTask
from tests.support.calc import BUGGY

FILES = {
    "calc.py": BUGGY,
    "checks/check.py": "import calc\nassert calc.add(1, 2) == 3\n",
    "checks/deep/data.txt": "kept\n",
    "secret/answer.txt": "forty-two\n",
    "keys.txt": "key\n",
    ".debugreadonly": "checks/\nlocked_*.txt\n",
    ".debugignore": "secret/\nkeys.txt\n",
    "locked_a.txt": "locked\n",
    "package/.debugreadonly": "*.cfg\n",
    "package/settings.cfg": "debug = no\n",
    "package/code.py": "x = 1\n",
}
PROTECTED = ("checks/", "locked_", "secret/", "keys.txt", ".debug", "package/settings.cfg")
SHELL = {
    "plain writes": "for path in checks/check.py locked_a.txt keys.txt secret/answer.txt; do printf x > $path; done",
    "policy files": "rm .debugreadonly; printf '' > .debugignore; printf '!*' > checks/.debugreadonly;"
    " printf '!*.cfg' > package/.debugreadonly; printf x > package/settings.cfg",
    "new files": "printf x > checks/new.py; printf x > locked_b.txt; printf x > secret/new.txt; printf x > extra.txt",
    "deletion": "rm -rf checks secret locked_a.txt keys.txt package/settings.cfg",
    "symbolic link to a file": "ln -s checks/check.py link.py && printf x > link.py",
    "symbolic link in the place of a file": "ln -sf ../calc.py checks/check.py; ln -sf calc.py keys.txt",
    "symbolic link in the place of a directory": "mv checks other && ln -s other checks && printf x > other/check.py",
    "hard link": "ln locked_a.txt copy.txt && printf x > copy.txt; ln checks/check.py c.py && printf x > c.py",
    "renamed directory": "mv checks moved; mkdir checks; printf x > checks/check.py",
    "renamed ancestor": "mkdir top && mv checks top/ && mv top checks",
    "file in the place of a directory": "rm -rf checks package && printf x > checks && printf x > package",
    "directory in the place of a file": "rm locked_a.txt && mkdir locked_a.txt && printf x > locked_a.txt/inner",
    "modes": "chmod 777 checks/check.py locked_a.txt; chmod 000 keys.txt; chmod 000 checks",
    "dots": "printf x > package/../checks/./check.py; printf x > ./checks//deep/../check.py",
    "absolute path": "printf x > $PWD/checks/check.py; printf x > /proc/self/cwd/locked_a.txt",
    "a program": "python -c \"import os; os.truncate('checks/check.py', 0); os.replace('calc.py', 'locked_a.txt')\"",
    "a program through a directory's descriptor": "python -c \"import os; fd = os.open('checks', os.O_RDONLY);"
    " os.write(os.open('check.py', os.O_WRONLY, dir_fd=fd), b'x')\"",
    "mounts": "unshare -rm sh -c 'mount --bind package checks; printf x > checks/code.py'; true",
    "sparse and special files": "mkfifo checks/pipe locked_pipe.txt; ln -s /etc/hostname checks/host;"
    " truncate -s 1M keys.txt",
    "git": "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm x; git mv checks gone; true",
    "archives": "tar cf $TMPDIR/a.tar checks && sed -i s/1/9/ checks/check.py && tar xf $TMPDIR/a.tar;"
    " touch -d 2000-01-01 checks/*",
}
SPELLINGS = (
    "checks/check.py",
    "./checks/check.py",
    "package/../checks/check.py",
    "checks//deep/../check.py",
    "{root}/checks/check.py",
)
HIDDEN = ("keys.txt", "secret/answer.txt", "./secret/../keys.txt", "{root}/secret/answer.txt")
WRITING_PROGRAM = "open('keys.txt', 'w').write('x')\nprint(1)\n"


def open_environment(kind, **options):
    """A repository with files that are read-only and files that are hidden, and an agent that may use every tool."""
    source = {"files": [{"path": path, "content": text} for path, text in FILES.items()]}
    spec = {"source": source, "entrypoint": "python check.py", "readOnlyPatterns": ["extra.txt"]}
    spec["scoring"] = {"hiddenFiles": [{"path": "check.py", "content": FILES["checks/check.py"]}]}
    task = msgspec.convert({"metadata": {"name": "policy"}, "spec": spec}, DebugTask)
    return dgym.AsyncRepoEnv(task, sandbox=kind, max_steps=200, **options)


def paths_of(patch):
    """The paths that a patch touches."""
    heads = [line.split(" b/", 1)[1] for line in patch.splitlines() if line.startswith("diff --git ")]
    return sorted(heads)


async def carries_nothing_protected(environment, command):
    """What is protected never changes in the patch, nor where it is scored; what is not, does."""
    command += "\nprintf 'x = 2\\n' > free.py"
    await environment.step({"tool": "bash", "arguments": {"command": command}})
    paths = paths_of(await environment.patch())
    assert [path for path in paths if path.startswith(PROTECTED)] == []
    assert "free.py" in paths
    await environment.step("submit")
    assert paths_of(environment.result.patch) == paths
    assert not environment.result.resolved
    assert environment.result.max_score == 1


async def file_tools_refuse_every_spelling(environment):
    observation, *_ = await environment.step("bash pwd")
    root = observation["text"].strip()
    for spelling in SPELLINGS:
        path = spelling.format(root=root)
        observation, *_ = await environment.step({"tool": "rewrite", "arguments": {"path": path, "new_code": "x"}})
        assert not observation["ok"]
        assert "read-only" in observation["text"]
        observation, *_ = await environment.step({"tool": "view", "arguments": {"path": path}})
        assert observation["ok"]
    for spelling in HIDDEN:
        path = spelling.format(root=root)
        for tool, more in (("view", {}), ("rewrite", {"new_code": "x"}), ("listdir", {})):
            observation, *_ = await environment.step({"tool": tool, "arguments": {"path": path, **more}})
            assert not observation["ok"], (tool, path)
            assert "forty-two" not in observation["text"]
    assert await environment.patch() == ""


async def file_tools_refuse_links(environment):
    await environment.step(
        "bash ln -s checks dir; ln -s checks/check.py file.py; ln -s secret open; ln -s keys.txt k.txt; ln -s / slash;"
        " ln -s ../calc.py package/up.py; ln -s dir chain; ln -s $PWD/checks/check.py absolute.py"
    )
    for path in ("dir/check.py", "file.py", "dir/new.py", "chain/check.py", "absolute.py", "open/answer.txt", "k.txt"):
        observation, *_ = await environment.step({"tool": "rewrite", "arguments": {"path": path, "new_code": "x"}})
        assert not observation["ok"], path
    for path in ("open/answer.txt", "k.txt", "slash/etc/hostname", "open"):
        observation, *_ = await environment.step({"tool": "view", "arguments": {"path": path}})
        assert not observation["ok"], path
    for call in ("grep forty", "listdir . 3"):
        observation, *_ = await environment.step(call)
        assert "forty" not in observation["text"].replace("'forty'", "").replace("grep forty", "")
        assert "answer" not in observation["text"]
    observation, *_ = await environment.step(
        {"tool": "rewrite", "arguments": {"path": "package/up.py", "start": 2, "new_code": "    return a + b"}}
    )
    assert observation["ok"], observation["text"]
    await environment.step("submit")
    assert environment.result.resolved, environment.result


async def program_and_debugger_write_in_vain(environment):
    await environment.step({"tool": "rewrite", "arguments": {"path": "write.py", "new_code": WRITING_PROGRAM}})
    await environment.step("bash python write.py")
    await environment.step({"tool": "pdb", "arguments": {"command": "n", "entrypoint": "python write.py"}})
    observation, *_ = await environment.step("pdb !open('checks/check.py', 'w').write('x')")
    assert observation["ok"], observation["text"]
    observation, *_ = await environment.step("bash cat keys.txt checks/check.py")
    assert observation["text"] == "xx"
    assert paths_of(await environment.patch()) == ["write.py"]
