"""The pre-commit hook and the reusable workflow: their command lines are run as they stand in the files."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from vramcast.cli.main import make_parser

ROOT = Path(__file__).parents[2]
JOB = "tests.jobs.tiny:JOB"


def hook() -> dict[str, Any]:
    (found,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    return found


def workflow() -> dict[Any, Any]:
    return yaml.safe_load((ROOT / ".github/workflows/vramcast-check.yml").read_text(encoding="utf-8"))


def shell(command: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """With `vramcast` on the path, wherever this interpreter keeps its programs."""
    program = tmp_path / "vramcast"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vramcast "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=ROOT,
        env={**os.environ, **path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_hook_runs_and_its_exit_code_is_the_verdict(tmp_path: Path) -> None:
    found = hook()
    assert (found["id"], found["language"], found["pass_filenames"]) == ("vramcast-check", "system", False)
    args = make_parser().parse_args([*shlex.split(found["entry"])[1:], *found["args"]])
    assert args.job == "vramcast.yaml"
    assert re.search(found["files"], "configs/train.yaml") and not re.search(found["files"], "README.md")
    # A project's own `args` replace the hook's.
    done = shell(f"{found['entry']} {JOB} --gpu t4", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Fits a ")


def test_the_workflow_is_one_that_can_be_called() -> None:
    document = workflow()
    call = document[True]["workflow_call"]  # YAML 1.1 reads `on` as a truth value
    assert {"job", "gpu", "margin"} <= set(call["inputs"])
    assert all(one["type"] == "string" for one in call["inputs"].values())
    assert document["permissions"] == {"contents": "read"}
    for step in document["jobs"]["check"]["steps"]:
        assert "${{" not in step.get("run", ""), "an input would be read as shell code"
        for value in step.get("env", {}).values():
            name = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)
            assert name and name[1] in call["inputs"]


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "margin", "code"), [("", "0", 2), ("t4", "0.1", 0)])
def test_the_workflow_s_command_runs(tmp_path: Path, gpu: str, margin: str, code: int) -> None:
    (step,) = (one for one in workflow()["jobs"]["check"]["steps"] if one.get("name") == "Check")
    job = JOB if code == 0 else "no-such-job.yaml"
    done = shell(step["run"], tmp_path, JOB=job, GPU=gpu, MARGIN=margin)
    assert done.returncode == code, done.stdout + done.stderr
    if code == 0:
        assert ", 10% of it kept free" in done.stdout
