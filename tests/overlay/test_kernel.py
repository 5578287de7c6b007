"""The kernel's way, with and without a user namespace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.overlay.tree_of_files import fingerprint, make_old

CODE = """
import json, os, shutil, subprocess, sys
from vramcast.overlay import kernel
kept = kernel.enter(as_root=sys.argv[1] == "root")
assert os.getcwd() == sys.argv[2]
open("new", "w").write("12345")
open("changed", "a").write("x")
os.remove("gone")
os.rename("folder", "renamed")
shutil.rmtree("made again")
os.mkdir("made again")
open("made again/inside", "w").write("x")
subprocess.run("echo x > by-a-program; rm also-gone", shell=True, check=True)
open("/dev/null", "w").write("x")
assert sorted(os.listdir(".")) == ["by-a-program", "changed", "made again", "new", "renamed"], os.listdir(".")
assert os.listdir("made again") == ["inside"] and os.listdir("renamed") == ["file"]
assert open("changed").read() == "old changed\\nx"
writes = kept.writes()
here = sys.argv[2] + "/"
ours = [one for one in writes.files if one.path.startswith(here)]
files = {one.path.removeprefix(here): (one.size_bytes, one.existed) for one in ours}
print(json.dumps([files, sorted(path.removeprefix(here) for path in writes.deleted if path.startswith(here))]))
"""


@pytest.mark.parametrize("user", ["root", "user"])
def test_everything_is_seen_and_nothing_is_touched(tmp_path: Path, user: str) -> None:
    import json

    here = tmp_path / "a: folder, with \\signs"
    make_old(here, ("changed", "gone", "also-gone", "folder/file", "made again/before"))
    before = fingerprint(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CODE, user, str(here)], cwd=here, capture_output=True, text=True, check=False, timeout=60
    )
    if "Refused" in done.stderr:
        pytest.skip("no mount namespaces for this user here")
    assert done.returncode == 0, done.stderr
    files, deleted = json.loads(done.stdout)
    assert files["new"] == [5, False] and files["changed"] == [13, True] and files["by-a-program"] == [2, False]
    assert files["made again/inside"] == [1, False]
    assert {"gone", "also-gone", "folder", "made again/before"} <= set(deleted)
    assert fingerprint(tmp_path) == before


PUT_BACK = (
    CODE
    + """
assert kept.put_back() and kept.put_back()
assert sorted(os.listdir(".")) == ["also-gone", "changed", "folder", "gone", "made again"], os.listdir(".")
assert os.listdir("made again") == ["before"] and os.listdir("folder") == ["file"]
assert open("changed").read() == "old changed\\n" and open("gone").read() == "old gone\\n"
assert not [one.path for one in kept.writes().files if one.path.endswith("new")]
"""
)


@pytest.mark.parametrize("user", ["root", "user"])
def test_files_are_put_back_for_a_second_run(tmp_path: Path, user: str) -> None:
    make_old(tmp_path, ("changed", "gone", "also-gone", "folder/file", "made again/before"))
    before = fingerprint(tmp_path)
    command = [sys.executable, "-c", PUT_BACK, user, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    if "Refused" in done.stderr:
        pytest.skip("no mount namespaces for this user here")
    assert done.returncode == 0, done.stderr
    assert fingerprint(tmp_path) == before
