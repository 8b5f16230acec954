"""Tests of data sets: rows are imported, refused, chosen and rendered as tasks."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from dgym.api import load
from dgym.benchmarks.datasets import (
    ImageNames,
    load_adapter,
    without_test_files,
    without_test_patch,
)
from dgym.benchmarks.datasets._library import TaskHealth, add_health, open_imported
from dgym.benchmarks.datasets.swebench import command_between_markers
from tests.support.miniature import write_rows

SWEBENCH = load_adapter("swebench")


def loaded(directory):
    return {one.metadata.name: one for file in sorted(directory.glob("*.yaml")) for one in load(file)}


def test_rendered_manifests_are_valid_and_contain_the_fields_of_the_row(benchmark, import_rows, rows, tmp_path):
    assert "imported 3 instances as mini, split test" in import_rows(rows).output
    assert benchmark("render", "mini", "--output", tmp_path / "out", "--agent", "solution").exit_code == 0
    found = loaded(tmp_path / "out")
    task, row = found["mini-coins-1"], rows[0]
    assert task.metadata.annotations == {"dgym.dev/instance": "mini__coins-1"}
    assert task.spec.image == row["image"]
    assert task.spec.activate == "source /opt/miniconda3/bin/activate && conda activate testbed"
    assert task.spec.entrypoint == "python -m pytest -rA -p no:cacheprovider"
    assert (task.spec.solution, task.spec.scoring.test_patch) == (row["patch"], row["test_patch"])
    assert task.spec.scoring.evaluation.fail_to_pass == tuple(json.loads(row["FAIL_TO_PASS"]))
    selector = found["mini-test"].spec.task_selector
    assert all(selector.matches(one.metadata.labels) for name, one in found.items() if name != "mini-test")


def test_commands_accept_a_bundled_benchmark(benchmark, tmp_path):
    assert "mini_nightmare" in benchmark("list").output
    assert json.loads(benchmark("list", "--output", "json").output)["bundled"][0]["rows"] == 10
    assert "sheet-undo" in benchmark("show", "mini_nightmare").output
    assert "10 instances come with dgym" in benchmark("verify", "mini_nightmare").output
    done = benchmark(
        "render", "mini_nightmare", "--filter", "form*", "--agent", "solution", "--output", tmp_path / "out"
    )
    assert done.exit_code == 0, done.output
    task, made = load(tmp_path / "out" / "formula.yaml") + load(tmp_path / "out" / "episodeset.yaml")
    assert task.spec.source.files
    assert [ref.name for ref in made.spec.tasks] == ["formula"]
    assert "did you mean 'formula'" in benchmark("render", "mini_nightmare", "--filter", "formla").output
    assert "leave it out" in benchmark("render", "mini_nightmare", "--image", "x").output
    ran = benchmark("run", "mini_nightmare", "--filter", "formula", "--results", tmp_path / "results")
    assert "give --agent NAME" in ran.output


def test_standard_output_is_one_stream_of_documents(benchmark, import_rows, rows, tmp_path):
    import_rows(rows)
    done = benchmark("render", "mini", "--filter", "mini__coins-2", "--agent", "solution")
    (tmp_path / "one.yaml").write_text(done.stdout)
    task, whole = load(tmp_path / "one.yaml")
    assert [ref.name for ref in whole.spec.tasks] == [task.metadata.name] == ["mini-coins-2"]


def test_arms_of_the_command_line_are_those_of_the_set(benchmark, import_rows, rows, tmp_path):
    import_rows(rows)
    arms = (
        "--arm",
        "walk",
        "--arm",
        "gold:agent=solution",
        "--arm",
        "few:tools=[view, rewrite],agent.maxSteps=9,model=m2",
    )
    done = benchmark("render", "mini", "--agent", "replay", "--model", "m1", *arms, "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    walk, gold, few = loaded(tmp_path / "out")["mini-test"].spec.arms
    assert (walk.name, walk.agent.name, walk.tools) == ("walk", None, ())
    assert (gold.name, gold.agent.name) == ("gold", "solution")
    assert (few.agent.max_steps, few.agent.model, few.tools) == (9, "m2", ("view", "rewrite"))
    for wrong, expected in (
        ("few:tools", "--arm few:tools: 'tools' is not of the form KEY=VALUE"),
        ("few:agent.steps=3", "--arm few:agent.steps=3: unknown path"),
        ("few:agent.maxSteps=0", "--arm few:agent.maxSteps=0: spec.arms[1].agent.maxSteps"),
        ("Few", "spec.arms[1].name"),
        ("walk", "spec.arms[1].name: arm 'walk' is named twice"),
    ):
        refused = benchmark("render", "mini", "--agent", "replay", "--arm", "walk", "--arm", wrong)
        assert (refused.exit_code, expected in refused.output) == (2, True), refused.output
    assert "name an agent here or in template.agent" in benchmark("render", "mini", "--arm", "walk").output


def test_the_agent_sees_nothing_of_the_test_patch(rows):
    row = SWEBENCH.row(rows[0], ImageNames())
    assert "git apply" not in row.evaluation.script
    assert "git checkout" not in row.evaluation.script
    seen = row.entrypoint + row.instructions + "".join(row.setup_commands)
    assert "test_parse" not in seen
    assert "test_money" not in seen


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pytest -rA tests/test_a.py astropy/tests/test_b.py", "pytest -rA"),
        ("./tests/runtests.py --parallel 1 test_a aggregation.tests", "./tests/runtests.py --parallel 1"),
        ("pytest 'tests/test_a.py::test_x' \"astropy/tests/test_b.py\"", "pytest"),
        ("tox --current-env -epy39 -v -- tests/test_a.py", "tox --current-env -epy39 -v --"),
        ("cd tests && pytest test_a.py", "python -m pytest -q"),
        ("pytest --deselect=tests/test_a.py::test_x", "python -m pytest -q"),
        ("pytest -k 'a  b' tests/test_other.py", "pytest -k 'a  b' tests/test_other.py"),
    ],
)
def test_the_entrypoint_names_no_file_of_the_test_patch(command, expected):
    names = ("tests/test_a.py", "astropy/tests/test_b.py", "tests/aggregation/tests.py")
    patch = "".join(f"diff --git a/{name} b/{name}\n" for name in names)
    assert without_test_files(command, patch) == expected


def test_agents_do_not_run_the_whole_suite_by_themselves(benchmark, import_rows, rows, tmp_path):
    import_rows(rows)
    arms = ("same", "other:agent=rewrite_agent", "own:agent.parameters={evalOnReset: true}", "gold:agent=solution")
    options = [option for arm in arms for option in ("--arm", arm)]
    done = benchmark("render", "mini", "--agent", "debug_agent", "--model", "m", *options, "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    made = loaded(tmp_path / "out")["mini-test"]
    specs = [arm.applied_to(made.spec.template) for arm in made.spec.arms]
    quiet = {"evalOnReset": False, "evalOnRewrite": False}
    assert [spec.agent.parameters for spec in specs] == [quiet, quiet, {**quiet, "evalOnReset": True}, {}]


def test_a_script_of_another_form_is_not_changed(rows):
    script = "git checkout abcdef0 tests\npatch -p1 </hidden.diff\nrun\n"
    assert without_test_patch(script) == (script, False, None)
    assert SWEBENCH.row({**rows[0], "eval_script": script}, ImageNames()).test_patch == ""
    assert command_between_markers(": '>>>>> Start Test Output'\na\nb\n: '>>>>> End Test Output'\n") is None


def test_commands_for_new_files_of_the_test_patch_are_removed_from_the_script():
    script = "rm -f tests/new.py\ngit apply -v - <<'EOF'\nrm -f x\nEOF\n: '>>>>> Start Test Output'\npytest\n"
    assert without_test_patch(script).script == ": '>>>>> Start Test Output'\npytest\n"


def test_rows_of_version_4_get_image_and_script_by_their_repository(rows):
    fields = ("image", "eval_script", "log_parser", "eval_type")
    old = {name: value for name, value in rows[0].items() if name not in fields} | {"repo": "pallets/flask"}
    row = SWEBENCH.row(old, ImageNames())
    assert row.image == "swebench/sweb.eval.x86_64.mini_1776_coins-1:latest"
    assert (row.entrypoint, row.evaluation.parser) == ("pytest -rA", "pytest")
    assert row.test_patch == old["test_patch"]
    django = {**old, "repo": "django/django"}
    assert SWEBENCH.row(django, ImageNames()).entrypoint.endswith("--parallel 1")


def test_images_follow_a_template_and_a_registry(rows):
    def image(**fields):
        return SWEBENCH.row(rows[0], ImageNames(**fields)).image

    assert image(registry="mirror.example:5000/hub") == f"mirror.example:5000/hub/{rows[0]['image']}"
    assert image(template="ghcr.io/me/{{ image_id }}:1") == "ghcr.io/me/mini_1776_coins-1:1"
    assert image(template="ghcr.io/me/{{ instance_id }}", registry="here") == "here/me/mini__coins-1"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS does not name a test, so that nothing could be repaired"),
        ({"FAIL_TO_PASS": '["a'}, "FAIL_TO_PASS is not JSON"),
        ({"PASS_TO_PASS": 3}, "PASS_TO_PASS is of type int, not a list of texts"),
        ({"problem_statement": None}, "problem_statement is empty"),
        ({"log_parser": "parse_log_cargo"}, "log_parser is 'parse_log_cargo'; only the parsers of Python repositories"),
        ({"eval_type": "other"}, "eval_type is 'other'; the types are pass_and_fail, fail_only"),
        ({"instance_id": "mini__coins-1"}, "instance_id is also in row 1"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_imported(benchmark, import_rows, rows, change, why):
    done = import_rows([rows[0], rows[1] | change])
    assert done.exit_code != 0
    assert "1 of" in str(done.output)
    assert f"row 2 ({ {**rows[1], **change}['instance_id'] }): {why}" in done.output.replace("\n", " ")
    assert "nothing was imported" in benchmark("list").output


def test_another_schema_is_named_by_its_fields(import_rows):
    done = import_rows([{"instance": "x", "Problem_statement": "y"}])
    assert "row 1: instance_id is missing (there is 'instance')" in done.output


def test_a_truncated_file_is_named_with_its_line(benchmark, rows, tmp_path):
    whole = write_rows(tmp_path / "rows.jsonl", rows).read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(whole[: len(whole) // 2])
    done = benchmark("import", "mini", "--adapter", "swebench", "--from", tmp_path / "cut.jsonl")
    assert (done.exit_code, "cut.jsonl, line 2: not JSON" in done.output) == (2, True)
    assert "is it truncated?" in done.output
    missing = benchmark("import", "mini", "--adapter", "swebench", "--from", tmp_path / "no.jsonl")
    assert "the file or directory does not exist" in missing.output


def test_unknown_names_are_reported_with_the_known_names(benchmark, import_rows, rows):
    import_rows(rows)
    assert "did you mean 'swebench'" in benchmark("import", "x", "--adapter", "swebenhc", "--from", "y").output
    assert "has no split 'dev': test" in benchmark("show", "mini", "--split", "dev").output
    assert "did you mean 'mini__coins-3'" in benchmark("render", "mini", "--filter", "mini__coins-33").output
    assert "rows have no field 'repository'" in benchmark("render", "mini", "--filter", "repository=x").output
    assert "did you mean 'mini'" in benchmark("render", "mni").output
    assert "import it: dgym benchmark import other --from FILE" in benchmark("show", "other").output
    assert "adapter 'swebench' has no split 'none'" in import_rows(rows, "--split", "none").output


def test_rows_are_pinned_by_their_checksum(benchmark, import_rows, rows):
    import_rows(rows)
    file = open_imported("mini").file
    assert benchmark("verify", "mini").exit_code == 0
    file.write_bytes(file.read_bytes() + b"{}\n")
    assert "differs from the imported file; import mini again" in benchmark("verify", "mini").output
    assert "not 0000; nothing was imported" in import_rows(rows, "--sha256", "0000").output


def test_flaky_and_broken_tasks_are_left_out_and_named(benchmark, import_rows, rows):
    import_rows(rows)
    bad = TaskHealth(instance="mini__coins-2", state="Flaky", message="test_a")
    add_health(open_imported("mini").health, [bad])
    done = benchmark("render", "mini", "--agent", "solution")
    assert "left out: mini__coins-2 (Flaky: test_a)" in done.stderr
    assert ("mini-coins-1" in done.stdout, "mini-coins-2" in done.stdout) == (True, False)
    assert """dgym.dev/left-out: '{"Flaky":1}'""" in done.stdout
    assert "mini-coins-2" in benchmark("render", "mini", "--unhealthy").stdout
    assert "health: 0 healthy, 1 flaky, 0 broken, 2 not checked" in benchmark("show", "mini").output


def test_commits_of_local_repositories_replace_images_without_history(
    benchmark, import_rows, repositories, tmp_path, monkeypatch
):
    root, rows = repositories
    import_rows(rows)
    monkeypatch.chdir(tmp_path)
    benchmark("render", "mini", "--output", "out", "--repositories", root)
    task = loaded(tmp_path / "out")["mini-coins-2"]
    files = sorted(path.name for path in (tmp_path / "out" / "repositories").glob("*/*"))
    assert (task.spec.image, set(files)) == (None, {"coins", "tests"})
    text = (tmp_path / "out" / "repositories").glob(f"*{rows[1]['base_commit'][:12]}/coins/money.py")
    assert 'ljust(2, "0")' in next(text).read_text()
    other = benchmark("render", "mini", "--repositories", tmp_path)
    assert "does not contain repository 'mini/coins'; clone it there as 'mini__coins'" in other.output


def test_an_interrupted_download_is_continued(benchmark, rows, tmp_path):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers.get("Range"))
            start = int((asked[-1] or "bytes=0-")[6:-1])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:] if start else data[:1000])

        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/rows.jsonl"
        digest = hashlib.sha256(data).hexdigest()
        arguments = ("import", "mini", "--adapter", "swebench", "--from", address, "--sha256", digest)
        first = benchmark(*arguments)
        assert "ended after 1000 of" in first.output or "the same command continues" in first.output
        assert benchmark(*arguments).exit_code == 0
        assert asked == [None, "bytes=1000-"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_json_lists_are_read_too_and_parquet_asks_for_pyarrow(benchmark, rows, tmp_path):
    (tmp_path / "rows.json").write_bytes(msgspec.json.encode(rows))
    assert benchmark("import", "a", "--adapter", "swebench", "--from", tmp_path / "rows.json").exit_code == 0
    (tmp_path / "rows.parquet").write_bytes(b"PAR1...")
    done = benchmark("import", "b", "--adapter", "swebench", "--from", tmp_path / "rows.parquet")
    assert "pip install 'dgym[parquet]'" in done.output or "not complete parquet" in done.output
