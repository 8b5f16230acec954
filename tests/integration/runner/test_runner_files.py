"""Tests of reads and writes of files and trees through the runner."""

import asyncio
import errno
import io
import os
import stat
import tarfile

import pytest

from dgym.sandbox import FileStat, _channel


async def chunks_of(data: bytes, size: int = 50_000):
    for start in range(0, len(data), size):
        yield data[start : start + size]


def tar_of(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


async def test_a_written_file_is_read_unchanged(sandbox):
    for size in (0, 1, 64 * 1024, 64 * 1024 + 1, 3_000_000):
        data = os.urandom(size)
        await sandbox.write_file("deep/er/file.bin", data)
        assert await sandbox.read_file("deep/er/file.bin") == data, size
        assert (await sandbox.stat(["deep/er/file.bin"]))[0].size == size


async def test_a_file_keeps_its_mode_and_a_new_one_has_0644(sandbox):
    await sandbox.write_file("script", b"1", mode=0o755)
    await sandbox.write_file("script", b"2")
    await sandbox.write_file("plain", b"1")
    assert [each.mode for each in await sandbox.stat(["script", "plain"])] == [0o755, 0o644]


async def test_a_digest_covers_paths_modes_and_contents_that_have_changed_since_the_baseline(sandbox):
    await sandbox.write_file("kept", os.urandom(9))
    await sandbox.write_file("gone", b"1")
    assert (await sandbox.digest()).sha256 == ""
    assert (await sandbox.digest(begin=True)).paths == 2
    unchanged, seen = (await sandbox.digest()).sha256, set()
    changes = [
        "echo 1 > new",
        "echo 2 > new",
        "echo 2 > new; chmod +x new",
        "ln -s kept new",
        "ln -s gone new",
        "mkfifo new",
        "rm gone",
        "truncate -s 2M new",
        "truncate -s 3M new",
    ]
    for change in changes:
        await sandbox.run(f"rm -f new; {change}")
        seen.add((await sandbox.digest()).sha256)
    assert len(seen | {unchanged}) == len(changes) + 1
    await sandbox.run("rm new; echo 1 > gone; touch kept")
    back = (await sandbox.digest()).sha256
    await sandbox.run("sleep 0.15; touch kept gone")
    assert (await sandbox.digest()).sha256 == back


CHANGES = [
    "echo 1 > new; mkdir -p d/e; echo 2 > d/e/f; ln -s kept link; mkfifo pipe",
    "rm gone; chmod +x kept; mv d moved",
    # Size and modification time are unchanged. Only the ctime shows the change.
    "touch -r same time; printf b > same; touch -r time same; rm time",
    "rm same; ln -s same same; rm link; mkdir link; echo 3 > link/x",
    "rm -r moved link; touch \"$(printf 'not-\\377-utf8')\"",
    "rm -rf ./*; printf a > same",
    "head -c 3M /dev/zero > large",
]


async def test_baseline_and_reported_changes_give_the_new_manifest(sandbox):
    for name in ("kept", "gone", "same"):
        await sandbox.write_file(name, b"a")
    assert await sandbox.changed() is None
    before = await sandbox.manifest()
    await sandbox.digest(begin=True)
    for change in CHANGES:
        assert (await sandbox.run(change)).exit_status == 0
        changed, after = await sandbox.changed(), await sandbox.manifest()
        if "large" in change:
            assert changed is None
            break
        reached = {path: entry for path, entry in {**before, **changed}.items() if entry is not None}
        assert reached == after, change
        assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} <= changed.keys()


async def test_unchanged_files_are_not_reported_as_changed(sandbox):
    await sandbox.run("for i in $(seq 50); do echo $i > f$i; done; sleep 0.15")
    await sandbox.digest(begin=True)
    assert await sandbox.changed() == {}
    await sandbox.run("echo new > f7; rm f9")
    assert sorted(await sandbox.changed()) == ["f7", "f9"]
    await sandbox.run(["python3", "-c", "for i in range(2_001): open(str(i), 'w')"])
    assert await sandbox.changed() is None
    await sandbox.run(["python3", "-c", "import os\nfor i in range(2_001): os.remove(str(i))"])
    assert sorted(await sandbox.changed()) == ["f7", "f9"]


async def test_a_manifest_is_the_same_whichever_process_writes_it(sandbox):
    for change in CHANGES[:-2]:
        await sandbox.write_file("kept", b"a")
        await sandbox.write_file("gone", b"a")
        await sandbox.run(change)
        small = await sandbox.manifest()
        await sandbox.run("head -c 3M /dev/zero > large")
        large = await sandbox.manifest()
        assert large.pop("large").size == 3 * 1024**2
        assert small == large
        await sandbox.run("rm large")


async def test_a_workspace_with_too_many_or_too_large_changes_has_no_digest(sandbox):
    await sandbox.digest(begin=True)
    await sandbox.run("for i in $(seq 17); do head -c 1M /dev/zero > $i; done")
    assert (await sandbox.digest()).sha256 == ""
    await sandbox.run("rm *; echo 1 > one")
    assert (await sandbox.digest()).sha256 != ""
    await sandbox.run(["python3", "-c", "for i in range(10_001): open(str(i), 'w')"])
    assert (await sandbox.digest()).sha256 == ""


async def test_writing_is_atomic_for_a_reader(sandbox):
    old, new = b"a" * 1_000_000, b"b" * 1_000_000
    await sandbox.write_file("file", old)

    async def read() -> None:
        for _ in range(10):
            assert await sandbox.read_file("file") in (old, new)

    await asyncio.gather(read(), sandbox.write_file("file", new))
    assert [entry.path for entry in await sandbox.list_directory()] == ["file"]


async def test_writing_replaces_a_symbolic_link_instead_of_following_it(sandbox):
    await sandbox.write_file("target", b"kept")
    await sandbox.run("ln -s target link")
    await sandbox.write_file("link", b"new")
    assert await sandbox.read_file("target") == b"kept"
    assert await sandbox.read_file("link") == b"new"


async def test_failures_inside_are_the_exceptions_of_python(sandbox):
    await sandbox.run("mkdir directory; echo x > file; mkfifo pipe")
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("missing")
    with pytest.raises(IsADirectoryError):
        await sandbox.read_file("directory")
    with pytest.raises(IsADirectoryError):
        await sandbox.write_file("directory", b"")
    with pytest.raises(FileExistsError):
        await sandbox.write_file("file/below", b"")
    with pytest.raises(OSError, match="File too large"):
        await sandbox.read_file("file", limit=1)
    with pytest.raises(OSError, match="NUL"):
        await sandbox.read_file("a\0b")
    with pytest.raises(NotADirectoryError):
        await sandbox.list_directory("file")
    with pytest.raises(OSError, match="Invalid"):
        await asyncio.wait_for(sandbox.read_file("pipe"), 20)
    with pytest.raises(OSError, match="workspace"):
        await sandbox.remove(["."])


async def test_stat_describes_every_type_of_file(sandbox):
    await sandbox.run("mkdir d; echo hi > d/f; ln -s d/f good; ln -s /nowhere bad; mkfifo p; chmod 600 d/f")
    found = await sandbox.stat(["d", "d/f", "good", "bad", "p", "none", "d/f/below"])
    assert [each.type for each in found] == ["directory", "file", "symlink", "symlink", "other", "missing", "missing"]
    assert (found[1].size, found[1].mode) == (3, 0o600)
    assert (found[2].target, found[2].real_path) == ("d/f", f"{sandbox.workspace}/d/f")
    assert found[3].real_path == "/nowhere"


async def test_a_listing_has_the_requested_depth_and_does_not_follow_links(sandbox):
    await sandbox.run("mkdir -p a/b/c; touch z a/y a/b/x; ln -s a loop; ln -s .. a/up")
    assert [each.path for each in await sandbox.list_directory()] == ["a", "loop", "z"]
    two = await sandbox.list_directory(depth=2)
    assert [each.path for each in two] == ["a", "a/b", "a/up", "a/y", "loop", "z"]
    assert [each.path for each in await sandbox.list_directory("a/b", depth=9)] == ["c", "x"]
    assert len(await sandbox.list_directory(depth=9, limit=3)) == 3
    assert isinstance(two[0], FileStat)


async def test_removing_takes_directories_and_links_but_not_their_targets(sandbox):
    await sandbox.run("mkdir -p d/e keep; touch d/e/f keep/k; ln -s ../keep d/link; chmod 000 d/e; ln -s keep link")
    await sandbox.remove(["d", "link", "missing", "missing/below"])
    assert [each.path for each in await sandbox.list_directory(depth=2)] == ["keep", "keep/k"]


async def test_names_that_are_not_utf8_are_shown_escaped_and_marked(sandbox):
    await sandbox.run(["bash", "-c", "touch $'caf\\xe9' ok"])
    assert [each.path for each in await sandbox.list_directory()] == ["caf\\xe9", "ok"]
    manifest = await sandbox.manifest()
    assert {path: entry.type for path, entry in manifest.items()} == {"caf\\xe9": "unnamed", "ok": "file"}


async def test_the_manifest_excludes_version_control_caches_and_bytecode(sandbox):
    await sandbox.run(
        "mkdir -p .git src/__pycache__ .pytest_cache src/empty; touch .git/x src/__pycache__/a.pyc src/b.pyo "
        ".pytest_cache/y src/a.py; ln -s src/a.py link; mkfifo pipe; chmod 755 src/a.py"
    )
    manifest = await sandbox.manifest()
    assert {path: entry.type for path, entry in manifest.items()} == {
        "link": "symlink",
        "pipe": "other",
        "src/a.py": "file",
    }
    assert manifest["link"].target == "src/a.py"
    assert manifest["src/a.py"].mode == 0o755


async def test_the_manifest_sees_a_change_of_the_same_size_within_the_same_second(sandbox):
    await sandbox.write_file("file", b"aaaa")
    seen = {(await sandbox.manifest())["file"].sha256}
    for number in range(20):
        # The modification time is set back too, so neither the size nor the modification time shows this change.
        await sandbox.run(f"printf {number:04} > file; touch -d @1000000000 file")
        seen.add((await sandbox.manifest())["file"].sha256)
    assert len(seen) == 21
    assert len({(await sandbox.manifest())["file"].sha256 for _ in range(3)}) == 1


async def test_the_manifest_notices_modes_links_and_removals(sandbox):
    await sandbox.run("touch a b; ln -s a link")
    before = await sandbox.manifest()
    await sandbox.run("chmod 700 a; rm b; ln -sfn b link")
    after = await sandbox.manifest()
    assert set(before) - set(after) == {"b"}
    assert (after["a"].mode, after["link"].target) == (0o700, "b")


async def test_an_unpacked_tree_can_be_packed_again(sandbox):
    files = {f"d{number % 7}/f{number}": os.urandom(number * 37) for number in range(300)}
    await sandbox.put_archive(chunks_of(tar_of(files)), path="tree")
    manifest = await sandbox.manifest()
    assert {path.removeprefix("tree/") for path in manifest} == set(files)
    data = b"".join([chunk async for chunk in sandbox.get_archive(["tree/d3", "tree/d1/f1"])])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        out = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
    assert out == {f"tree/{name}": content for name, content in files.items() if name[:2] == "d3" or name == "d1/f1"}


async def test_archives_keep_links_and_modes(sandbox):
    await sandbox.run("mkdir t; echo x > t/f; chmod 755 t/f; ln -s f t/link; mkfifo t/pipe")
    data = b"".join([chunk async for chunk in sandbox.get_archive(["t"])])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = {member.name: member for member in archive}
    assert sorted(members) == ["t", "t/f", "t/link"]
    assert members["t/link"].linkname == "f"
    assert stat.S_IMODE(members["t/f"].mode) == 0o755
    assert (members["t/f"].uid, members["t/f"].uname) == (0, "")


async def test_archives_that_lead_outside_are_refused(sandbox):
    with pytest.raises(OSError, match="leads outside"):
        await sandbox.put_archive(chunks_of(tar_of({"../evil": b"x"})))
    with pytest.raises(OSError, match=r"\w"):
        await sandbox.put_archive(chunks_of(b"not a tar at all" * 100))
    assert await sandbox.manifest() == {}
    # A separate process unpacks a large archive.
    with pytest.raises(OSError, match="leads outside"):
        await sandbox.put_archive(chunks_of(tar_of({"large": bytes(500_000), "../evil": b"x"})))
    with pytest.raises(OSError, match="File name too long"):
        await sandbox.put_archive(chunks_of(tar_of({"large": bytes(500_000), "n" * 300: b"x"})))
    assert set(await sandbox.manifest()) == {"large"}


async def test_archiving_a_missing_path_raises(sandbox):
    with pytest.raises(FileNotFoundError):
        [chunk async for chunk in sandbox.get_archive(["missing"])]


async def test_more_paths_than_a_header_takes(sandbox):
    """An agent controls the number and the length of the paths."""
    directory = "/".join("d" * 200 for _ in range(17))
    count = 400
    assert count * len(directory) > _channel.MAX_HEADER
    await sandbox.run(f"mkdir -p {directory}; cd {directory}; for n in $(seq {count}); do echo $n > $n; done")
    paths = sorted(await sandbox.manifest())
    assert len(paths) == count
    assert {each.type for each in await sandbox.stat(paths)} == {"file"}
    data = b"".join([chunk async for chunk in sandbox.get_archive(paths)])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == paths
    await sandbox.remove(paths)
    assert await sandbox.manifest() == {}


async def test_the_manifest_of_too_many_files_raises(sandbox):
    await sandbox.run("mkdir d; touch a b d/c")
    assert len(await sandbox.manifest(limit=4)) == 3
    with pytest.raises(OSError, match="more than 3 files and directories") as caught:
        await sandbox.manifest(limit=3)
    assert caught.value.errno == errno.E2BIG


async def test_an_invalid_path_raises_and_the_runner_continues(sandbox):
    for path in ("a\0b", "x" * 5000, "\udc80"):
        with pytest.raises(OSError):
            await sandbox.stat([path])
        with pytest.raises(OSError):
            await sandbox.remove(["fine", path])
        assert await sandbox.manifest() == {}, path


async def test_a_slow_reader_does_not_block_other_calls_or_use_memory(runner):
    await runner.client.run("head -c 60000000 /dev/zero > big")
    before = runner.resident_kib()
    stream = runner.client.get_archive(["big"])
    first = await anext(stream)
    assert (await runner.client.run("echo meanwhile")).text == "meanwhile\n"
    assert runner.resident_kib() < before + 3000
    total = len(first)
    async for chunk in stream:
        total += len(chunk)
    assert total > 60_000_000
    assert runner.resident_kib() < before + 3000


async def test_closing_the_stream_stops_the_packing(sandbox, helpers):
    await sandbox.run("head -c 60000000 /dev/zero > big")
    stream = sandbox.get_archive(["big"])
    await anext(stream)
    await stream.aclose()
    await helpers.until(sandbox.processes, lambda found: not found)
    assert (await sandbox.run("echo on")).text == "on\n"


async def test_a_source_that_fails_ends_the_unpacking(sandbox, helpers):
    async def failing():
        for _ in range(2):
            yield tar_of({"a": bytes(1_000_000)})[:200_000]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        await sandbox.put_archive(failing())
    await helpers.until(sandbox.processes, lambda found: not found)
    assert (await sandbox.run("echo on")).text == "on\n"


async def test_large_writes_do_not_fill_the_runner(runner):
    await runner.client.write_file("warm", b"x" * 1_000_000)
    before = runner.resident_kib()
    await runner.client.write_file("big", b"x" * 40_000_000)
    assert runner.resident_kib() < before + 3000
    assert len(await runner.client.read_file("big", limit=50_000_000)) == 40_000_000
    assert runner.resident_kib() < before + 3000
