"""Configs of tools that are not read: recognised, so that the answer says how to predict them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError, VramcastError
from vramcast.jobs.readers import Reading, Request
from vramcast.jobs.readers.documents import peek
from vramcast.jobs.text_files import read_text

_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_TEXTS = (*_SCRIPTS, ".yaml", ".yml", ".py")
_WITHOUT_TRAINING = re.compile(
    r"\b(?:swift (?:infer|export|deploy|eval|app|sample|rollout|web-ui)|llamafactory-cli (?:api|chat|export|webchat)"
    r"|megatron export|(?:vllm|lmdeploy) serve|trl vllm-serve|lm_eval|axolotl (?:inference|merge-lora|preprocess))\b"
)
"""Commands of scripts that lie beside those which train."""
_RAY = ""
"""In place of a command: the tool trains in processes that Ray starts."""
_FILE, _FOLDER, _STEM, _FOUND = "FILE", "FOLDER", "STEM", "FOUND"
"""Stand for the config, its folder, its name without the ending, and what was found in its text."""


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    command: str | Callable[[Mapping[str, Any]], str]
    """What starts the training, as the tool's own pages have it."""
    keys: frozenset[str] = frozenset()
    """All of them are at the root of its configs."""
    text: re.Pattern[str] | None = None
    """Is found in its scripts, and in configs that name objects of Python."""


def _litgpt(keys: Mapping[str, Any]) -> str:
    if "model_name" in keys:
        verb = "pretrain"
    elif "lora_r" in keys:
        verb = "finetune_lora"
    else:
        verb = "finetune_full"
    return f"litgpt {verb} --config {_FILE}"


_HYDRA = f"python SCRIPT.py --config-path {_FOLDER} --config-name {_STEM}"
_TOOLS = (
    _Tool("verl", _RAY, frozenset({"actor_rollout_ref"})),
    _Tool("verl", _RAY, text=re.compile(r"\bverl\.trainer\.main_(?:ppo|generation)\b")),
    _Tool(
        "verl", f"torchrun --nproc-per-node 1 -m {_FOUND} ...", text=re.compile(r"\bverl\.trainer\.\w*sft_trainer\b")
    ),
    _Tool("OpenRLHF", _RAY, text=re.compile(r"\bopenrlhf\.cli\.train_ppo\w*")),
    _Tool("OpenRLHF", f"deepspeed --module {_FOUND} ...", text=re.compile(r"\bopenrlhf\.cli\.train_\w+")),
    _Tool("LitGPT", _litgpt, frozenset({"out_dir", "train", "eval", "data"})),
    _Tool("ai-toolkit", f"python run.py {_FILE}", frozenset({"job", "config"})),
    _Tool("SimpleTuner", "simpletuner train", frozenset({"model_family", "data_backend_config"})),
    _Tool(
        "OneTrainer",
        f"python scripts/train.py --config-path {_FILE}",
        frozenset({"training_method", "base_model_name"}),
    ),
    _Tool(
        "diffusion-pipe",
        f"deepspeed --num_gpus=1 train.py --deepspeed --config {_FILE}",
        frozenset({"micro_batch_size_per_gpu", "pipeline_stages", "model"}),
    ),
    _Tool("H2O LLM Studio", f"python llm_studio/train.py -Y {_FILE}", frozenset({"llm_backbone", "problem_type"})),
    _Tool(
        "LLaMA-Factory v1", f"env USE_V1=1 llamafactory-cli sft {_FILE}", frozenset({"model_class", "train_dataset"})
    ),
    _Tool(
        "detectron2", f"python tools/train_net.py --num-gpus 1 --config-file {_FILE}", frozenset({"MODEL", "SOLVER"})
    ),
    _Tool(
        "detectron2", f"python tools/train_net.py --num-gpus 1 --config-file {_FILE}", frozenset({"_BASE_", "MODEL"})
    ),
    _Tool(
        "detectron2",
        f"python tools/lazyconfig_train_net.py --num-gpus 1 --config-file {_FILE}",
        text=re.compile(r"^from detectron2\.config import .*\bLazyCall\b", re.MULTILINE),
    ),
    _Tool(
        "OpenMMLab",
        f"python tools/train.py {_FILE}",
        text=re.compile(r"^(?:optim_wrapper|train_dataloader|train_cfg|_base_) = (?:dict\(|\[|')", re.MULTILINE),
    ),
    _Tool(
        "fairseq",
        f"fairseq-hydra-train --config-dir {_FOLDER} --config-name {_STEM}",
        frozenset({"task", "criterion", "optimization"}),
    ),
    _Tool("NeMo", _HYDRA, frozenset({"trainer", "model", "exp_manager"})),
    _Tool("timm", f"python train.py --config {_FILE}", frozenset({"model", "opt", "sched", "drop_path", "reprob"})),
    _Tool("nerfstudio", "ns-train METHOD --data DATA", text=re.compile(r"^!!python/object:nerfstudio\.", re.MULTILINE)),
    _Tool(
        "SpeechBrain", f"python train.py {_FILE}", text=re.compile(r"^\w+: !(?:new|name|apply):[\w.]+", re.MULTILINE)
    ),
    _Tool("Hydra", _HYDRA, frozenset({"defaults"})),
    _Tool("Hydra", _HYDRA, frozenset({"_target_"})),
)
"""The more particular first."""
NAME = ", ".join(dict.fromkeys(tool.name for tool in _TOOLS))


def recognises(path: Path) -> bool:
    return _found(path) is not None


def check_trains(path: Path) -> None:
    """For a script that no reader knew: UsageError where it starts something else."""
    match = _WITHOUT_TRAINING.search(_text(path)) if path.suffix in _SCRIPTS else None
    if match is not None:
        raise UsageError(
            f"{path}: `{match[0]}` does not train; name a script that does. Of the model alone: vramcast predict "
            "FOLDER --set task=inference"
        )


def _found(path: Path) -> tuple[_Tool, str] | None:
    """The tool, and the command that starts its training."""
    keys = {name.removeprefix("--"): value for name, value in peek(path).items() if isinstance(name, str)}
    text = _text(path)
    for tool in _TOOLS:
        match = tool.text.search(text) if tool.text is not None else None
        if match is not None or (tool.text is None and tool.keys <= set(keys)):
            command = tool.command if isinstance(tool.command, str) else tool.command(keys)
            names = {_FILE: str(path), _FOLDER: str(path.absolute().parent), _STEM: path.stem}
            names[_FOUND] = match[0] if match is not None else ""
            return tool, " ".join(shlex.quote(names[word]) if word in names else word for word in command.split())
    return None


def _text(path: Path) -> str:
    if path.suffix not in _TEXTS or not path.is_file():
        return ""
    try:
        return read_text(path)
    except VramcastError:
        return ""


def read(path: Path, request: Request) -> Reading:
    found = _found(path)
    assert found is not None
    tool, command = found
    if not command:
        raise CannotPredict(
            f"{path}: {tool.name} trains in processes of Ray, which cannot be followed. The update of the policy alone "
            "takes what its fine-tuning takes: vramcast predict FOLDER --batch 1 --seq 1024, with the sizes of a "
            "micro-batch"
        )
    raise CannotPredict(
        f"{path}: a config of {tool.name}, which is not read here. Predict the program that trains with it: "
        f"vramcast run {command}"
    )
