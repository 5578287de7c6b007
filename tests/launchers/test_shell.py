"""Shell scripts that start a training."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from vramcast.base.errors import UsageError
from vramcast.cli.main import main
from vramcast.launchers import shell

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")

SCRIPT = """#!/bin/bash
set -e
export CUDA_VISIBLE_DEVICES=0
conda activate somewhere
wget https://example.invalid/data.zip
pip install -r requirements.txt
count=$(python -c "print(1 + 1)")
cd code
python prepare.py
OMP_NUM_THREADS=4 torchrun --nproc_per_node=$count train.py --name "two words" "$@" > ../log.txt 2>&1 &
python evaluate.py | tee result.txt
wait
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "train.sh").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        (["bash", "train.sh"], True),
        (["A=1", "nohup", "sh", "train.sh"], True),
        (["./train.sh"], True),
        (["bash"], False),
        (["python", "train.py"], False),
        (["torchrun", "train.sh"], False),
        ([], False),
    ],
)
def test_what_is_a_shell_command(here: Path, command: list[str], is_one: bool) -> None:
    assert shell.is_shell_command(command) == is_one


def test_the_training_is_found_with_its_variables_and_folder(here: Path) -> None:
    chosen, started = shell.training_of(["LR=1", "bash", "train.sh", "--lr", "1"])
    assert chosen.words == ["torchrun", "--nproc_per_node=2", "train.py", "--name", "two words", "--lr", "1"]
    assert chosen.folder == str(here / "code")
    assert chosen.variables == {"LR": "1", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "4"}
    assert {each.words[1] for each in started} == {"prepare.py", "--nproc_per_node=2", "evaluate.py"}


def test_launchers_behind_prefixes_and_in_functions_are_seen(here: Path) -> None:
    (here / "train.sh").write_text(
        'launch() { uv run accelerate launch "$@"; }\naccelerate config default\nfor seed in 1 2; do\n'
        "launch main.py --seed $seed\ndone\n"
    )
    chosen, started = shell.training_of(["bash", "train.sh"])
    assert chosen.words == ["uv", "run", "accelerate", "launch", "main.py", "--seed", "1"]
    assert len(started) == 2


def test_a_script_that_waits_is_ended(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_LIMIT_S", 1)
    (here / "train.sh").write_text("python train.py\nwhile true; do :; done\n")
    assert shell.training_of(["bash", "train.sh"])[0].words == ["python", "train.py"]


def test_a_script_without_a_training_is_refused(here: Path) -> None:
    (here / "train.sh").write_text("sbatch job.slurm\npython -m pip install torch\n")
    with pytest.raises(UsageError, match=r"bash train\.sh starts no Python program"):
        shell.training_of(["bash", "train.sh"])


def test_run_takes_a_shell_script(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "train.sh").write_text(SCRIPT.replace("$count", "1"))
    (here / "train.sh").chmod(stat.S_IRWXU)
    (here / "code" / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8).cuda()\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n    model(torch.ones(4, 8).cuda()).sum().backward()\n    optimizer.step()\n"
    )
    arguments = ["run", "--gpu", "24GiB", "--write-through", "--save", "trace.vram", "--full", "./train.sh"]
    assert main(arguments) == 0
    out = capfd.readouterr().out
    assert "./train.sh starts torchrun --nproc_per_node=1 train.py --name 'two" in out
    assert (here / "trace.vram").is_file()
