"""Training scripts and arguments of Megatron-LM and NeMo: recognised, so that the answer says how to predict them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.jobs.readers import Reading, Request
from vramcast.jobs.readers.documents import peek
from vramcast.jobs.text_files import read_text

NAME = "Megatron-LM or NeMo"
_SCRIPTS, _CONFIGS = (".sh", ".slurm", ".sbatch"), (".yaml", ".yml")
_MODEL_ARGS = "MODEL_ARGS"
"""Where Megatron-LM's recipes have the arguments of the program."""
_NEMO_KEYS = {"tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size", "megatron_amp_O2"}
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
    if path.suffix in _CONFIGS:
        return _is_recipe(peek(path, *_CONFIGS)) or _is_of_nemo(peek(path, *_CONFIGS))
    if path.suffix not in _SCRIPTS or not path.is_file():
        return False
    try:
        text = read_text(path)
    except UsageError:
        return False
    return len(set(_OPTION.findall(text))) >= 2


def _is_recipe(data: dict[str, Any]) -> bool:
    arguments = data.get(_MODEL_ARGS)
    return isinstance(arguments, dict) and any(str(key).startswith("--") for key in arguments)


def _is_of_nemo(data: dict[str, Any]) -> bool:
    model = data.get("model")
    return isinstance(model, dict) and "class_path" not in model and len(_NEMO_KEYS & set(model)) >= 2


def read(path: Path, request: Request) -> Reading:
    if path.suffix in _CONFIGS and _is_of_nemo(peek(path, *_CONFIGS)):
        raise CannotPredict(
            f"{path}: a config of NeMo: its models are Megatron-LM's, with layers, gradient buffers and an optimizer "
            "of their own, which a job cannot say. Run the program instead, where NeMo is installed: vramcast run "
            "torchrun --nproc-per-node 8 megatron_gpt_pretraining.py with its arguments"
        )
    refuse(str(path), read_text(path))


def is_command(words: Sequence[str]) -> bool:
    return len({word for word in words if _OPTION.match(word)}) >= 2


def refuse(where: str, text: str) -> NoReturn:
    """`text`: a script, or the words of a command."""
    named = next((option for option in _OWN if option in text), _OWN[-1])
    program = _PROGRAM.search(text)
    script = program[0].rpartition("/")[2] if program else "pretrain_gpt.py"
    raise CannotPredict(
        f"{where}: {named}: Megatron-LM has layers, gradient buffers and an optimizer of its own, which a job cannot "
        f"say. Run its program instead: vramcast run torchrun --nproc-per-node 8 {script} with its arguments"
    )
