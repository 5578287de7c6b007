"""A shell script as a command: the training in it, as a real shell would start it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.launchers import Launch, read_command

BASH = shutil.which("bash")
TELLS = """#!{python}
import json, os, sys
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("OUT")]))
"""

SCRIPTS = {
    "arguments": 'GPUS=$1\nset -x\npython train.py --gpus $GPUS "${@:2}" $# $NONE_SUCH "$NONE_SUCH"',
    "arguments are parsed": "while [[ $# -gt 0 ]]; do case $1 in 2) B=$2; shift;; *) A=$1;; esac; shift; done\n"
    "python train.py $A $B",
    "the environment": "python train.py ${WHO:-nobody} $WHO",
    "where it lies": 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nexport OUT="$HERE/$(basename $0 .sh)"\n'
    "cd sub\npython ../train.py $OUT `pwd` $(dirname $0)",
    "files": "if [ -f train.py ]; then A=1; fi\n[ -d nowhere ] || B=2\n[[ -e sub && ! -s empty ]] && C=3\n"
    "python train.py $A $B $C",
    "the first of a loop": "for lr in 1 2; do for b in 4 8; do python train.py $lr $b; done; done",
    "rounds": "n=0\nwhile [ $n -lt 5 ]; do n=$((n+1)); if [ $n = 3 ]; then break; fi; done\npython train.py $n",
    "another file": "source settings\npython train.py $FROM_THERE",
    "part of a text": "S=scripts/one.sh\npython train.py ${S:8} ${S:0:3} ${S:8:${#S}-11} ${S:8:-3}",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(4, device='cuda')\n")
    for name in ("main.py", "train_and_eval.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "settings").write_text("FROM_THERE=yes\n")
    (tmp_path / "empty").write_text("")
    return tmp_path


def read(text: str, *arguments: str, **environment: str) -> Launch:
    Path("run.sh").write_text(text)
    return read_command(["bash", "run.sh", *arguments], environment)


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_as_a_shell_starts_it(text: str, here: Path) -> None:
    programs = here / "programs"
    programs.mkdir()
    (programs / "python").write_text(TELLS.format(python=sys.executable))
    (programs / "python").chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "WHO": "somebody"}
    launch = read(text, "2", "a b", **environment)
    done = subprocess.run(
        [str(BASH), "run.sh", "2", "a b"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    words, folder, out = json.loads(done.stdout.splitlines()[0])
    assert [launch.target, *launch.arguments] == words
    assert Path(launch.folder or here).resolve() == Path(folder).resolve()
    assert launch.environment.get("OUT") == out


@pytest.mark.parametrize(
    ("text", "target", "note"),
    [
        ("pip install x\npython prepare_data.py\ntorchrun --nproc-per-node 1 train.py\npython test.py", "train.py",
         "run.sh:3 is the training; the shell script itself was read, and not run, nor `python prepare_data.py`"),
        ("for seed in 1 2 3; do python main.py $seed; done\npython eval.py", "main.py", "training, the first of 3;"),
        ("N=$(nvidia-smi --list-gpus | wc -l)\ntorchrun --nproc-per-node $N train.py", "train.py", "there is one card"),
        ("mkdir -p out\nbash inner.sh 3 2>&1 | tee out/log", "train.py", "run.sh:2 is the training"),
        ("python train_and_eval.py\npython eval.py", "train_and_eval.py", "run.sh:1 is the training"),
        ("python -m tool.convert\npython -m tool.train", "tool.train", "run.sh:2"),
    ],
)  # fmt: skip
def test_the_training_is_found(text: str, target: str, note: str, here: Path) -> None:
    (here / "inner.sh").write_text("python train.py --times $1\n")
    launch = read(text)
    assert launch.target == target
    assert any(note in said for said in launch.notes)


def test_a_script_that_can_be_started_itself(here: Path) -> None:
    (here / "go").write_text("#!/usr/bin/env bash\nexport OUT=there\nCUDA_VISIBLE_DEVICES=0 python train.py $1\n")
    launch = read_command(["env", "A=1", "./go", "x"], {})
    assert (launch.target, launch.arguments) == ("train.py", ("x",))
    assert launch.environment == {"A": "1", "OUT": "there", "CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("echo nothing", "no command that starts a training was found in this shell script"),
        ('if [ -z "$1" ]; then echo usage; exit 1; fi\npython train.py', "which ends in line 1"),
        ("python one.py\npython two.py", "starts several programs; write the command of one of them:\n  python one.py"),
        ("python train.py --port $(find_a_port)", r"run.sh:1: $(find_a_port) is not known here: it is what a program"),
        ("cd /nowhere/at/all\npython train.py", "it is started in /nowhere/at/all, and there is no such folder here"),
        ("cp train.py copy.py\npython copy.py", "run.sh starts copy.py, which is not here; the shell script itself is"),
        ("while true; do true; done", "a loop of more than 1,000 rounds is not followed"),
        ("python train.py 'x", "run.sh:1"),
        ("bash missing.sh", "no command that starts a training"),
    ],
)
def test_what_cannot_be_followed(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert told in str(caught.value)


def test_a_script_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"no such script: nowhere\.sh"):
        read_command(["bash", "nowhere.sh"], {})


def test_a_training_in_another_folder_is_predicted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "sub" / "main.py").write_text("import os, torch\nprint(os.getcwd())\ntorch.ones(4, device='cuda')\n")
    (here / "run.sh").write_text("cd sub\npython main.py --x\n")
    assert main(["run", "--full", "--gpu", "rtx-4090", "bash", "run.sh"]) == 0
    said = capsys.readouterr().out
    assert str(here / "sub") in said
    assert "run.sh:2 is the training" in " ".join(said.split())
    assert Path.cwd() == here
