#!/usr/bin/env python3
"""A fake of docker and podman: the same command line, but containers are plain processes.

The directory FAKE_ENGINE contains its state: ``images/``, ``containers/``, and files whose names select failures.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ["FAKE_ENGINE"])
NAME = Path(sys.argv[0]).name


def file_name(text):
    return text.replace("/", "_")


def main(words):
    command = words.pop(0)
    if command == "image":
        command = words.pop(0)
    with (STATE / "calls").open("a") as file:
        file.write(json.dumps([NAME, command, *words]) + "\n")
    return {"info": info, "inspect": inspect, "pull": pull, "run": run, "rm": remove, "ps": processes}[command](words)


def info(_words):
    if (STATE / f"{NAME}-is-down").exists():
        if NAME == "docker":
            print(json.dumps({"ServerErrors": ["Cannot connect to the daemon"]}))
        print(f"{NAME}: cannot connect", file=sys.stderr)
        return 1
    podman = {"host": {"cgroupVersion": "v2", "cgroupControllers": ["memory", "pids", "cpu"], "security": {}}}
    docker = {"OSType": "linux", "MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True}
    print(json.dumps(podman if NAME == "podman" else docker))
    return 0


def inspect(words):
    path = STATE / "images" / file_name(words[-1])
    if not path.exists():
        print(f"Error: {words[-1]}: image not known", file=sys.stderr)
        return 1
    facts = {"Id": f"id-of-{words[-1]}", "Config": {"User": path.read_text()}}
    if words[-1].startswith("registry.example/"):
        facts["RepoDigests"] = [f"{words[-1].partition(':')[0]}@sha256:1f3a"]
    print(json.dumps([facts] if NAME == "podman" else facts))
    return 0


def pull(words):
    if "absent" in words[-1]:
        print("Trying to pull", words[-1], file=sys.stderr)
        print("Error: manifest unknown", file=sys.stderr)
        return 125
    print("layer one: done", flush=True)
    print("layer two: done", file=sys.stderr)
    if "forgotten" not in words[-1]:
        (STATE / "images" / file_name(words[-1])).write_text("")
    return 0


def run(words):
    record = STATE / "containers" / words[words.index("--name") + 1]
    mount = words[words.index("--mount") + 1]
    source = next(field for field in mount.split(",") if field.startswith("source=")).removeprefix("source=")
    interpreter = words[words.index("--entrypoint") + 1]
    if interpreter != "python3":
        print(f'Error: "{interpreter}": executable file not found in $PATH', file=sys.stderr)
        return 127
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(STATE), "FLAVOUR": "vanilla"}
    command = [sys.executable, "-I", "-S", "-B", f"{source}/__main__.py", "--stdio"]
    runner = subprocess.Popen(command, env=environment, start_new_session=True)
    record.with_suffix(".new").write_text(json.dumps({"pid": runner.pid, "label": words[words.index("--label") + 1]}))
    record.with_suffix(".new").rename(record)
    status = runner.wait()
    record.unlink(missing_ok=True)
    return status


def remove(words):
    if (STATE / "removing-fails").exists():
        (STATE / "removing-fails").unlink()
        print("Error: removal is in progress", file=sys.stderr)
        return 1
    record = STATE / "containers" / words[-1]
    if not record.exists():
        print(f"Error: no such container: {words[-1]}", file=sys.stderr)
        return 1
    pid = json.loads(record.read_text())["pid"]
    record.unlink(missing_ok=True)
    if pid:
        os.kill(pid, signal.SIGKILL)
    return 0


def processes(words):
    for record in (STATE / "containers").iterdir():
        filters = [words[index + 1] for index, word in enumerate(words) if word == "--filter"]
        label = f"label={json.loads(record.read_text())['label']}"
        if filters in ([f"name=^{record.name}$"], [label]):
            print(record.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
