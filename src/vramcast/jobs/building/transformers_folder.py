"""A model from a Hugging Face transformers folder: config.json says everything but the weights."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

import torch

from vramcast.base.access import check_code, check_file
from vramcast.base.errors import UsageError
from vramcast.jobs.building.allowed import check_transformers
from vramcast.jobs.building.built import Built
from vramcast.jobs.building.libraries import library, loading
from vramcast.jobs.building.plain_config import plain_config
from vramcast.jobs.folders import CONFIG, check_sizes, merged, read_json, why_no_model
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Component

TASKS = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "image-classification": "AutoModelForImageClassification",
    "semantic-segmentation": "AutoModelForSemanticSegmentation",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "ctc": "AutoModelForCTC",
    "audio-classification": "AutoModelForAudioClassification",
    "image-text-to-text": "AutoModelForImageTextToText",
    "feature-extraction": "AutoModel",
}
"""The heads that `task` names, as transformers' Auto classes."""


def find_class(component: Component) -> tuple[Any, Any]:
    """The config of the folder, and the class that it is for."""
    folder = Path(component.transformers or component.diffusers or "") / (component.subfolder or "")
    check_file(folder)
    if not (folder / CONFIG).is_file():
        raise UsageError(why_no_model(folder) if folder.is_dir() else f"no such folder: {folder}")
    raw = merged(read_json(folder / CONFIG), component.config)
    check_sizes(raw, str(folder / CONFIG))
    with loading():
        config = _config(folder, raw, component)
        return config, _model_class(folder, raw, config, component)


def build(key: str, component: Component, dtype: torch.dtype) -> Built:
    """`key`: of the component, for messages."""
    config, model_class = find_class(component)
    arguments = dict(component.arguments)
    if not component.trust_remote_code:
        check_transformers(f"{key}.arguments", arguments, _plain_class(model_class, config))
    arguments = {_dtype_argument(): dtype, **arguments}
    if model_class.__name__.startswith("Auto"):
        module = model_class.from_config(config, trust_remote_code=component.trust_remote_code, **arguments)
    else:
        module = model_class._from_config(config, **arguments)
    if component.liger:
        _apply_liger(key, module)
    return Built(module=module, config=config.to_dict(), family="transformers")


def _apply_liger(key: str, module: Any) -> None:
    library("liger_kernel", key)
    patches = importlib.import_module("liger_kernel.transformers.monkey_patch")
    kind = module.config.model_type
    if kind not in patches.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise UsageError(f"{key}.liger: Liger Kernel has nothing for {kind} models")
    patches._apply_liger_kernel_to_instance(model=module)


def _dtype_argument() -> str:
    """`dtype` was called `torch_dtype` before transformers 4.56."""
    version = importlib.metadata.version("transformers").split(".")
    return "dtype" if (int(version[0]), int(version[1])) >= (4, 56) else "torch_dtype"


def _config(folder: Path, raw: dict[str, Any], component: Component) -> Any:
    transformers = library("transformers", folder)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    has_code = "auto_map" in raw
    if component.trust_remote_code:
        check_code(str(folder))
    if has_code and component.trust_remote_code:
        config = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=True, local_files_only=True)
        config.update(component.config)
        return config
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise UsageError(f'{folder / CONFIG}: "model_type" is missing, which names the architecture, e.g. "llama"')
    if model_type not in CONFIG_MAPPING:
        cure = (
            "the folder brings its own code, which runs only with --trust-remote-code"
            if has_code
            else "a newer transformers may know it; or name a Python function that builds the model"
        )
        raise UsageError(
            f"{folder / CONFIG}: model_type: transformers {transformers.__version__} has no {model_type!r}"
            f"{_only_guess(nearest(model_type, CONFIG_MAPPING))}; {cure}"
        )
    base = getattr(transformers, "PreTrainedConfig", None) or transformers.PretrainedConfig  # its name before 5
    data = raw if component.trust_remote_code else plain_config(raw, base, str(folder / CONFIG))
    try:
        return CONFIG_MAPPING[model_type].from_dict(data)
    except Exception as error:  # whatever transformers raises for a value it cannot use
        raise UsageError(f"{folder / CONFIG}: {_first_line(error)}") from None


def _model_class(folder: Path, raw: dict[str, Any], config: Any, component: Component) -> Any:
    transformers = library("transformers", folder)
    if component.task is not None:
        if component.task not in TASKS:
            raise UsageError(f"task: there is no {component.task!r}{nearest(component.task, TASKS)}")
        return getattr(transformers, TASKS[component.task])
    name = component.class_name
    if name is None:
        architectures = raw.get("architectures") or []
        name = architectures[0] if architectures else "AutoModel"
    if not isinstance(name, str) or not name.isidentifier() or not hasattr(transformers, name):
        if component.trust_remote_code and "auto_map" in raw:
            return (
                transformers.AutoModelForCausalLM
                if "AutoModelForCausalLM" in raw["auto_map"]
                else transformers.AutoModel
            )
        raise UsageError(
            f"{folder / CONFIG}: architectures: transformers {transformers.__version__} has no class {name!r}; "
            "say which one with class_name (e.g. AutoModelForCausalLM) or task (e.g. causal-lm)"
        )
    model_class = getattr(transformers, name)
    is_auto = name.startswith("Auto") and hasattr(model_class, "_model_mapping")
    if not is_auto and not (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)):
        raise UsageError(f"{name} of transformers is not a model class")
    return model_class


def _plain_class(model_class: Any, config: Any) -> Any:
    """The class itself that an Auto class stands for."""
    mapping = getattr(model_class, "_model_mapping", None)
    plain = mapping.get(type(config), model_class) if mapping is not None else model_class
    return plain[0] if isinstance(plain, (tuple, list)) else plain


def _only_guess(text: str) -> str:
    return text if text.startswith(";") else ""


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}" if lines else type(error).__name__
