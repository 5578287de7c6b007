"""The launchers themselves, started here without a card, and what their processes find."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.launchers import read_command

DUMP = """
import json, os, sys
with open(f"rank{os.environ.get('RANK', 0)}.json", "w") as file:
    json.dump([dict(os.environ), sys.argv[1:]], file)
"""
OF_THE_PROCESS = re.compile(r"TORCHELASTIC_ERROR_FILE|TORCHINDUCTOR_\w*|PYTORCH_NVML_\w*|KMP_\w*|LC_\w*|_")
"""Paths that are new each time, and what imports of the launcher leave behind; signals were added later."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize(
    "command",
    [
        "python -m torch.distributed.run --nproc-per-node 2 --master-port PORT dump.py --lr 1",
        "python -m torch.distributed.launch --nproc_per_node 1 --master_port PORT dump.py x",
        "python -m accelerate.commands.launch --mixed_precision bf16 --num_processes 1 dump.py",
        "python -m lightning.fabric.cli run --accelerator cpu --main-port PORT --precision 32-true dump.py --lr 1",
    ],
)
def test_a_process_finds_what_is_said_of_it(command: str, tmp_path: Path) -> None:
    pytest.importorskip(command.split()[2].partition(".")[0])
    (tmp_path / "dump.py").write_text(DUMP)
    around = {**os.environ, "HF_HOME": str(tmp_path), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    around.pop("OMP_NUM_THREADS", None)
    typed = command.replace("PORT", str(free_port())).split()
    words = list(typed)
    if "lightning" in command:  # its module runs only the verb
        words[1:3] = ["-c", "from lightning.fabric.cli import _main; _main()"]
    done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, env=around, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    launch = read_command(typed, around)
    for path in tmp_path.glob("rank*.json"):
        environment, arguments = json.loads(path.read_text())
        rank = int(environment.get("RANK", 0))
        theirs = {name: value for name, value in environment.items() if around.get(name) != value}
        ours = {name: value for name, value in launch.environment_of(rank).items() if around.get(name) != value}
        names = {name for name in theirs | ours if not OF_THE_PROCESS.fullmatch(name)}
        names -= {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
        assert {name: ours.get(name) for name in names} == {name: theirs.get(name) for name in names}
        assert launch.arguments_of(rank) == arguments
    assert len(list(tmp_path.glob("rank*.json"))) == launch.world_size
