"""Tests of small benchmarks from import to report, and of the health check on unhealthy tasks.

``tests.e2e.cluster.miniature`` builds the images.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.cluster.episodes import SUBMIT, episode, replay, shell
from tests.e2e.cluster.support import condition, new_namespace, run
from tests.support.kin import exercises, harbor_tasks, live_rows, r2e_rows, rebench_rows, smith_rows
from tests.support.miniature import make_repository, write_rows

PYTHON = "/opt/python/bin/python"
REPAIR = shell("sed -i 's/fraction or 0/fraction.ljust(2, \"0\")/' coins/money.py")
BREAK = shell("sed -i 's/int(whole) \\* 100/int(whole) * 10/' coins/money.py")
FAKE = shell("echo \"def pytest_sessionstart(): print('PASSED tests/test_money.py::test_parse[12.3]')\" > conftest.py")
HARBOR = shell("sed -i \"s/return number/return number * $(grep -o '[0-9]' money.py | head -n 1)/\" money.py")
HISTORY = shell("git log --all --reflog --format=%s; git remote; git for-each-ref; git fsck --lost-found --no-reflogs")
ATTEMPTS = {
    "empty": [],
    "repair": [REPAIR],
    "break": [REPAIR, BREAK],
    "fake": [FAKE],
    "erase": [REPAIR, shell("echo > tests/test_money.py")],
    "look-ahead": [HISTORY],
}
"""Tool calls of the agents on the first task of the small SWE-bench."""
RESOLVED = {"repair", "erase"}
CHANCES = 32
SOMETIMES = f"""\
diff --git a/tests/test_chance.py b/tests/test_chance.py
new file mode 100644
--- /dev/null
+++ b/tests/test_chance.py
@@ -0,0 +1,9 @@
+import os
+import pytest
+from coins import money
+
+repaired = money.parse("12.3") == 1230
+
+@pytest.mark.parametrize("number", range({CHANCES}))
+def test_sometimes(number):
+    assert repaired or os.urandom(1)[0] % 2
"""
"""Many tests that pass by chance without the repair, so that two runs have different outcomes."""


@pytest.fixture(scope="module")
def image():
    """Returns the image of a row. Without a number, it returns the image of the repository with all repairs."""
    name, _, tag = os.environ["DGYM_E2E_MINIATURE_IMAGE"].rpartition(":")
    return lambda number=None: f"{name}{'' if number is None else f'-{number}'}:{tag}"


@pytest.fixture(scope="module")
def dgym(tmp_path_factory):
    """Runs ``dgym`` with a separate cache directory for imported data sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield lambda *arguments, **settings: run("dgym", *map(str, arguments), **settings)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return make_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def kubectl():
    with new_namespace("e2e-benchmarks") as kubectl:
        yield kubectl


@pytest.fixture(scope="module")
def applied(dgym, rows, image, kubectl, tmp_path_factory):
    """Imports and submits all benchmarks at the same time. Returns the names of their adapters."""
    root = tmp_path_factory.mktemp("rows")

    def of_row(many, field, kind):
        """Give the rows unique ids, since task names are unique within a namespace."""
        return [
            row | {"instance_id": f"{kind}-{number}", field: image(number)} for number, row in enumerate(many, start=1)
        ]

    sources = {
        "swebench": rows,
        "swebench-live": of_row(live_rows(rows, PYTHON), "docker_image", "live"),
        "swe-rebench": of_row(rebench_rows(rows, f"{PYTHON} -m pytest"), "image_name", "rebench"),
        "swesmith": [row | {"image_name": image()} for row in smith_rows(rows)],
        "r2egym": of_row(r2e_rows(rows), "docker_image", "r2e"),
        "harbor": harbor_tasks(root / "harbor"),
        "exercism": exercises(root / "exercism"),
    }

    def apply(adapter):
        source = sources[adapter]
        file = write_rows(root / f"{adapter}.jsonl", source) if isinstance(source, list) else source
        split = "train" if adapter == "swesmith" else "test"
        dgym("benchmark", "import", f"mini-{adapter}", "--adapter", adapter, "--from", file, "--split", split)
        if adapter != "harbor":
            images = ("--image", image().replace("mini_1776_coins", "{{ image_id }}")) if adapter == "swebench" else ()
            manifests = dgym("benchmark", "render", f"mini-{adapter}", "--agent", "solution", *images)
            kubectl("apply", "--server-side", "-f", "-", text=manifests)

    with ThreadPoolExecutor(len(sources)) as threads:
        list(threads.map(apply, sources))
    dgym("benchmark", "render", "mini-harbor", "--agent", "replay", "--output", root / "rendered")
    calls = json.dumps("\n".join(map(json.dumps, (HARBOR, SUBMIT))))
    manifests = sorted((root / "rendered").glob("*.yaml"))
    dgym("submit", *manifests, "-n", kubectl.namespace, "-p", f"agent.parameters.trajectory={calls}")
    task = {"taskRef": {"name": "mini-coins-1"}, "tools": ["bash", "submit"]}
    kubectl.apply(*(episode(name, agent=replay(*calls, SUBMIT), **task) for name, calls in ATTEMPTS.items()))
    return sorted(sources)


def test_gold_patches_resolve_all_tasks(applied, kubectl, dgym, system, tmp_path):
    kubectl("wait", "--for=condition=Finished", "episodeset", "--all", "--timeout=480s", timeout=500)
    counts = {
        each["metadata"]["name"]: tuple(each["status"].get(name, 0) for name in ("total", "resolved"))
        for each in kubectl.items("episodesets")
    }
    assert counts == {
        f"mini-{adapter}-{'train' if adapter == 'swesmith' else 'test'}": (1, 1) if adapter == "exercism" else (3, 3)
        for adapter in applied
    }, [each["status"] for each in kubectl.items("episodes")]
    places = ("-n", kubectl.namespace, "--system-namespace", system.namespace, "--directory", tmp_path)
    dgym("results", "mini-swebench-test", "mini-swebench-live-test", *places)
    report = json.loads(dgym("report", tmp_path, "--output", "json"))
    assert (report["overall"]["scored"], report["overall"]["resolved"]) == (6, 6)
    lines = dgym("benchmark", "predictions", tmp_path, "--benchmark", "mini-swebench").splitlines()
    predictions = [json.loads(line) for line in lines]
    assert [one["instance_id"] for one in predictions] == [f"mini__coins-{number}" for number in (1, 2, 3)]
    assert all(one["model_patch"].startswith("diff --git a/coins/money.py") for one in predictions)


@pytest.mark.parametrize("name", ATTEMPTS)
def test_only_the_correct_patch_resolves(applied, kubectl, name):
    status = kubectl.finished(name)
    wanted = "Resolved" if name in RESOLVED else "Unresolved"
    assert (status["reason"], status["outcome"]["maxScore"]) == (wanted, 3), kubectl.explain(name)


def test_the_history_of_an_image_ends_at_its_commit(applied, kubectl, dgym, system, tmp_path):
    kubectl.finished("look-ahead")
    dgym(
        *("results", "episode/look-ahead", "-n", kubectl.namespace),
        *("--system-namespace", system.namespace, "--directory", tmp_path),
    )
    (trajectory,) = tmp_path.rglob("trajectory.jsonl")
    steps = [json.loads(line) for line in trajectory.read_text().splitlines()]
    (observed,) = [step["observation"]["text"] for step in steps if (step.get("call") or {}).get("tool") == "bash"]
    assert "Begin" in observed
    assert not {"Repair", "origin", "future", "v2.0", "dangling"} & set(observed.replace("/", " ").split()), observed


def test_tasks_that_are_not_healthy(dgym, rows, image, kubectl, system, tmp_path):
    sick = [row | {"instance_id": f"sick-{number}", "image": image(number)} for number, row in enumerate(rows, start=1)]
    flaky = [f"tests/test_chance.py::test_sometimes[{number}]" for number in range(CHANCES)]
    sick.append(
        sick[0]
        | {
            "instance_id": "sick-4",
            "test_patch": sick[0]["test_patch"] + SOMETIMES,
            "eval_script": sick[0]["eval_script"].replace("provider tests", "provider tests/test_chance.py tests"),
            "PASS_TO_PASS": json.dumps([*json.loads(sick[0]["PASS_TO_PASS"]), *flaky]),
        }
    )
    sick[1]["patch"] = sick[1]["patch"].replace("divmod", "modulo")
    sick[2]["image"] = "localhost/dgym-e2e/there-is-none:1"
    dgym("benchmark", "import", "sick", "--adapter", "swebench", "--from", write_rows(tmp_path / "rows.jsonl", sick))

    health = ("benchmark", "health", "sick", "--cluster", "-n", kubectl.namespace)
    health += ("--system-namespace", system.namespace, "--output", "json")
    printed = dgym(*health, "--filter", "sick-1,sick-2,sick-4", check=False)
    printed += dgym(*health, "--filter", "sick-3", "--repeat", "1", "--start-timeout", "60", check=False)
    assert printed.count('"instance"') == 4, printed
    conditions = [condition(kubectl.get("debugtask", f"sick-{number}")["status"], "Healthy") for number in range(1, 5)]
    found = [(one["status"], one["reason"]) for one in conditions]
    assert found == [("True", "Healthy"), ("False", "Broken"), ("False", "Broken"), ("False", "Flaky")], conditions
    assert "does not apply" in conditions[1]["message"]
    assert "ImagePullFailed" in conditions[2]["message"]
    assert "there-is-none" in conditions[2]["message"]
    assert (
        "equal runs of the untouched repository differ in tests/test_chance.py::test_sometimes["
        in conditions[3]["message"]
    )
    assert "Flaky" in kubectl("get", "debugtask", "sick-4")
    assert [each for each in kubectl.items("episodesets") if "health" in each["metadata"]["name"]] == []
    rendered = dgym("benchmark", "render", "sick", "--agent", "solution", check=False)
    assert "left out: sick-4 (Flaky" in rendered
    assert "name: sick-1" in rendered
    assert "name: sick-4" not in rendered
