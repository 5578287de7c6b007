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


def action() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def test_no_input_of_the_action_is_shell_code() -> None:
    document = action()
    for step in document["runs"]["steps"]:
        assert step["shell"] == "bash" and "${{" not in step["run"]
        for value in step.get("env", {}).values():
            for name in re.findall(r"inputs\.([\w-]+)", value):
                assert name in document["inputs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "lang", "code", "words"), [(JOB, "zh", "0", "放得下"), ("none.yaml", "en", "2", "no such file")]
)
def test_the_action_writes_the_comment(tmp_path: Path, job: str, lang: str, code: str, words: str) -> None:
    (step,) = (one for one in action()["runs"]["steps"] if one["name"] == "Predict")
    summary, output = tmp_path / "summary", tmp_path / "output"
    done = shell(
        step["run"], tmp_path, JOB=job, GPU="t4", ALLOW_CODE="false", LANGUAGE_OF_COMMENT=lang,
        RUNNER_TEMP=str(tmp_path), GITHUB_STEP_SUMMARY=str(summary), GITHUB_OUTPUT=str(output),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert output.read_text() == f"exit-code={code}\n"
    comment = (tmp_path / "vramcast.md").read_text(encoding="utf-8")
    assert (
        words in comment and comment.endswith("<!-- vramcast -->\n") and summary.read_text(encoding="utf-8") == comment
    )


@pytest.mark.slow
def test_the_action_rewrites_its_comment(tmp_path: Path) -> None:
    """With a stand-in for GitHub's own program that knows one comment."""
    (step,) = (one for one in action()["runs"]["steps"] if one["name"] == "Comment")
    gh = tmp_path / "gh"
    gh.write_text('#!/bin/sh\necho "$@" >> "$CALLS"\ncase "$*" in *paginate*) cat "$KNOWN";; esac\n', encoding="utf-8")
    gh.chmod(0o755)
    for known, asked in (("", "repos/o/r/issues/7/comments"), ("41\n", "-X PATCH repos/o/r/issues/comments/41")):
        (tmp_path / "known").write_text(known, encoding="utf-8")
        calls = tmp_path / "calls"
        calls.unlink(missing_ok=True)
        done = shell(
            step["run"], tmp_path, NUMBER="7", REPOSITORY="o/r", RUNNER_TEMP=str(tmp_path), CALLS=str(calls),
            KNOWN=str(tmp_path / "known"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert calls.read_text().splitlines()[-1].startswith(f"api {asked} -F body=@")
