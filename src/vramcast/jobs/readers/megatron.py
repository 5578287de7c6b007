"""Training scripts of Megatron-LM: recognised, so that the answer says how to predict them."""

from __future__ import annotations

import re
from pathlib import Path

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.jobs.readers import Reading, Request
from vramcast.jobs.text_files import read_text

NAME = "Megatron-LM script"
_OPTION = re.compile(
    r"--(?:tensor-model-parallel-size|pipeline-model-parallel-size|micro-batch-size|use-distributed-optimizer)\b"
)
_PROGRAM = re.compile(r"[\w./{}$-]*(?:pretrain|train)_\w+\.py")
_OWN = (
    "--use-distributed-optimizer", "--use-megatron-fsdp", "--bf16", "--fp16", "--fp8-format", "--num-experts",
    "--tensor-model-parallel-size",
)  # fmt: skip
"""Options of which each makes Megatron's memory another than a job's; the first that is there is named."""


def recognises(path: Path) -> bool:
    if path.suffix not in (".sh", ".slurm", ".sbatch") or not path.is_file():
        return False
    try:
        text = read_text(path)
    except UsageError:
        return False
    return len(set(_OPTION.findall(text))) >= 2


def read(path: Path, request: Request) -> Reading:
    text = read_text(path)
    named = next((option for option in _OWN if option in text), _OWN[-1])
    program = _PROGRAM.search(text)
    script = program[0].rpartition("/")[2] if program else "pretrain_gpt.py"
    raise CannotPredict(
        f"{path}: {named}: Megatron-LM has layers, gradient buffers and an optimizer of its own, which a job cannot "
        f"say. Run its program instead: vramcast run torchrun --nproc-per-node 8 {script} with its arguments"
    )
