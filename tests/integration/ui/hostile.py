"""Handwritten results that attack the page that shows them. An honest run does not produce such results."""

import json
from pathlib import Path

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><svg onload='window.hacked = 3'>"
ATTRIBUTE = '" onfocus="window.hacked = 4" autofocus x="'
LINK = "javascript:window.hacked=5"
LINKED = "\x1b]8;;javascript:window.hacked=6\x1b\\link\x1b]8;;\x1b\\"
TERMINAL = f"\x1b]0;title\x07{LINKED} \x1b]52;c;aGFja2Vk\x07 \x1b[8mhidden\x1b[0m"
BIDI = "user\u202e\u2066// check\u2069\u2066 begin admin"
ALL = f"{SCRIPT} {ATTRIBUTE} {LINK} {TERMINAL} {BIDI} </pre></main></html> {{{{ 7 * 7 }}}} ]]>"


def write_hostile(results: Path) -> None:
    attempt = results / "run<i>" / "local" / "x' onclick='window.hacked=7" / "d&lt;b&gt;" / "1"
    attempt.mkdir(parents=True)
    header = {"schemaVersion": 1, "episode": ALL, "task": ALL, "manifest": ALL, "agent": {"name": ALL, "model": LINK}}
    reset = {"seq": 0, "call": None, "observation": {"text": ALL, "tool": "reset"}, "elapsedSeconds": 1e300}
    frame = {"file": ALL, "line": 1, "function": ALL}
    point = {"number": 1, "file": LINK, "line": 3, "condition": SCRIPT}
    observation = {"text": ALL, "tool": ALL, "frame": frame, "breakpoints": [point], "diff": f"+{ALL}", "notes": [ALL]}
    message = {
        "role": "assistant",
        "content": ALL,
        "calls": [{"id": ALL, "tool": ALL, "raw": ALL}],
        "extra": {ALL: ALL},
    }
    exchange = {
        "text": ALL,
        "reasoning": ALL,
        "refusal": ALL,
        "messages": [message],
        "sent": [[0, 0]] * 50,
        "tools": [ALL],
    }
    steps = [
        {"tool": ALL, "arguments": {ALL: ALL, "list": [ALL], "id": "step-0"}},
        {"tool": "pdb", "arguments": {"command": ALL}},
        {"tool": "view", "arguments": {"path": "a" * 900_000}},
    ]
    lines = [header, reset]
    for number, call in enumerate(steps, start=1):
        step = {"seq": number, "call": call, "observation": observation, "elapsedSeconds": -5.0}
        lines.append({**step, "exchanges": [exchange, ALL, 7, {"text": 7}]})
    lines[1]["exchanges"] = [{**exchange, "sent": sent} for sent in ([[0, 10**18]], [[-1, 0]], [[0, 0]] * 10_000, [])]
    huge = {"text": "x" * 2_000_000 + "\n" * 100_000 + "\x1b[31m" * 100_000, "tool": "bash"}
    lines.append({"seq": 4, "call": {"tool": "bash", "arguments": {}}, "observation": huge, "elapsedSeconds": 2.0})
    (attempt / "trajectory.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = {"resolved": False, "reason": "Unresolved", "message": ALL, "notes": [ALL], "tests": {ALL: ALL}}
    names = {"namespace": ALL, "episode": ALL, "task": ALL, "agent": ALL, "model": ALL, "price": "nan"}
    integrity = {"clean": False, "seen": [{"sign": "TestsChanged", "detail": ALL}]}
    (attempt / "result.json").write_text(json.dumps({**result, **names, "integrity": integrity}))
    (attempt / "patch.diff").write_text(f"+{ALL}\n")
    (attempt / "episode.log").write_text(ALL)
