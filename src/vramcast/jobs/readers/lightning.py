"""Lightning CLI YAML: a `class_path` is code that the config names: a factory, which passes the gate as any does."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.equality import same_precision
from vramcast.jobs.optimizer_names import class_path
from vramcast.jobs.readers import Edits, Part, Reading, Request, combine
from vramcast.jobs.readers.code import code_note, factory_place, typed_factory
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.schema import Job, Precision
from vramcast.jobs.validation import in_words
from vramcast.trace import Note

NAME = "Lightning CLI config"
STEPS = "trainer.max_steps"
"""What it calls the number of optimizer steps."""

_PRECISIONS: dict[str, dict[str, Any]] = {
    "32": {"preset": "fp32"},
    "32-true": {"preset": "fp32"},
    "16": {"preset": "fp16"},
    "16-mixed": {"preset": "fp16"},
    "bf16": {"preset": "bf16"},
    "bf16-mixed": {"preset": "bf16"},
    "16-true": {"preset": "pure-fp16"},
    "bf16-true": {"preset": "pure-bf16"},
    "64": {"weights": "fp64"},
    "64-true": {"weights": "fp64"},
}
_STRATEGIES: dict[str, dict[str, Any]] = {
    "auto": {},
    "ddp": {"strategy": "ddp"},
    "ddp_spawn": {"strategy": "ddp"},
    "ddp_fork": {"strategy": "ddp"},
    "ddp_notebook": {"strategy": "ddp"},
    "ddp_find_unused_parameters_true": {"strategy": "ddp", "find_unused_parameters": True},
    "ddp_find_unused_parameters_false": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp"},
    "fsdp_cpu_offload": {"strategy": "fsdp", "offload_parameters": True},
    "deepspeed": {"strategy": "deepspeed", "zero_stage": 2},
    "deepspeed_stage_1": {"strategy": "deepspeed", "zero_stage": 1},
    "deepspeed_stage_2": {"strategy": "deepspeed", "zero_stage": 2},
    "deepspeed_stage_2_offload": {"strategy": "deepspeed", "zero_stage": 2, "offload_optimizer": True},
    "deepspeed_stage_3": {"strategy": "deepspeed", "zero_stage": 3},
    "deepspeed_stage_3_offload": {
        "strategy": "deepspeed", "zero_stage": 3, "offload_optimizer": True, "offload_parameters": True,
    },
}  # fmt: skip
_CLASSES = {"DDPStrategy": "ddp", "FSDPStrategy": "fsdp", "DeepSpeedStrategy": "deepspeed"}
_BATCHES = ("batch_size", "train_batch_size")
_OPTIMIZER_MODULES = ("torch.optim", "bitsandbytes.optim", "")
_EXAMPLE = "inputs: {x: {shape: [batch, 3, 224, 224]}, y: {shape: [batch], dtype: int64, below: 10}}"


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml")
    model = keys.get("model")
    return isinstance(keys.get("trainer"), dict) or (isinstance(model, dict) and "class_path" in model)


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    keys = Keys.of(read_document(path), str(path))
    notes: list[Note] = []
    assumed: dict[str, str] = {}
    unsupported: dict[str, str] = {}
    trainer = keys.section("trainer")
    data: dict[str, Any] = {
        "name": path.stem,
        "components": {"model": _model(keys, path.parent, request, notes)},
        "sizes": _batch(keys, assumed),
        "optimizer": _optimizer(keys, assumed, request),
        "precision": _precision(trainer, unsupported),
        "gpus": _gpus(trainer, assumed, unsupported),
        "accumulation": trainer.whole("accumulate_grad_batches") or 1,
        "zero_grad": "before-backward",
        "outputs_live_until": "forward",
    }
    norm = trainer.number("gradient_clip_val")
    if norm and (trainer.text("gradient_clip_algorithm", ("norm", "value")) or "norm") == "norm":
        data["gradient_clipping"] = norm
    elif norm:
        notes.append(Note("clipping", "by value: it takes no memory of its own"))
    if trainer.flag("benchmark"):
        data["cudnn_benchmark"] = True
    notes += unused_note(keys.unused(), str(path))
    return Part(
        data=data, recognised_as=NAME, where=str(path), notes=tuple(notes), assumed=assumed, unsupported=unsupported,
        finish=functools.partial(_training_step, str(path)), folders=(path.parent,),
    )  # fmt: skip


def _training_step(where: str, data: dict[str, Any]) -> dict[str, Any]:
    """Lightning calls training_step(batch, batch_idx), which returns the loss; what a batch is, no config says."""
    inputs, model = data.get("inputs"), data["components"]["model"]
    if not isinstance(inputs, dict) or not inputs:
        raise UsageError(
            f"{where}: the shapes of a batch are not in a Lightning config: say them in a second YAML file, "
            f"--with inputs.yaml, like\n  {_EXAMPLE}"
        )
    if "inputs" in model or "method" in model:
        return data
    batch = {f"batch.{i}": name for i, name in enumerate(inputs)}
    model = {**model, "method": "training_step", "inputs": batch, "options": {"batch_idx": 0}}
    return {"loss": {"kind": "model"}, **data, "components": {**data["components"], "model": model}}


def _model(keys: Keys, folder: Path, request: Request, notes: list[Note]) -> dict[str, Any]:
    """The class that `model.class_path` names; a config of a fixed class has its arguments alone."""
    model = keys.section("model")
    class_path = model.text("class_path")
    if request.model:
        factory, why = typed_factory(request.model, folder, request.gate), "--model names it"
    elif class_path is None:
        model.need("class_path", "mypackage.module.LitModel; or name the class with --model package.module:Class")
    else:
        factory, why = _as_factory(class_path, model, request), "class_path names it"
    notes.append(code_note(factory, why))
    arguments = model.as_dict() if class_path is None else model.section("init_args").as_dict()
    return {"factory": factory, "arguments": arguments}


def _as_factory(class_path: str, section: Keys, request: Request) -> str:
    module, _, name = class_path.rpartition(".")
    factory = f"{module or '__main__'}:{name}"
    request.gate.check(factory_place(section.name_of("class_path"), factory, section.where))
    return factory


def _batch(keys: Keys, assumed: dict[str, str]) -> dict[str, int]:
    """The batch of one process: in the data module's arguments, or in the model's."""
    place = _place_of_batch(keys)
    if place is not None:
        section = keys
        for name in place[:-1]:
            section = section.section(name)
        return {"batch": section.whole(place[-1]) or 1}
    assumed["sizes.batch"] = "a batch of 1: the config says none under data (--batch)"
    return {"batch": 1}


def _place_of_batch(keys: Keys) -> tuple[str, ...] | None:
    below = ("data", "init_args") if "class_path" in keys.section("data") else ("data",)
    places = dict.fromkeys((below, ("data",), ("model", "init_args")))
    return next((key for section in places for name in _BATCHES if keys.says(key := (*section, name))), None)


def _optimizer(keys: Keys, assumed: dict[str, str], request: Request) -> dict[str, Any]:
    section = keys.section("optimizer")
    class_path = section.text("class_path")
    if class_path is None:
        assumed["optimizer"] = "AdamW: configure_optimizers of the class is not called (--optimizer)"
        return {"name": "adamw"}
    arguments = section.section("init_args").as_dict()
    module, _, name = class_path.rpartition(".")
    if module in _OPTIMIZER_MODULES:
        return {"name": name, "arguments": arguments}
    return {"factory": _as_factory(class_path, section, request), "arguments": arguments}


def _precision(trainer: Keys, unsupported: dict[str, str]) -> dict[str, Any]:
    value = trainer.take("precision")
    if value is None:
        return {"preset": "fp32"}
    name = str(value)
    if name in ("transformer-engine", "transformer-engine-float16"):
        unsupported["precision"] = f"trainer.precision: {name} is not modelled; --precision bf16 predicts with that"
        return {"preset": "bf16"}
    if name not in _PRECISIONS or isinstance(value, (bool, float)):
        trainer.fail("precision", f"{in_words(value)} is not one of {', '.join(_PRECISIONS)}")
    return _PRECISIONS[name]


def _gpus(trainer: Keys, assumed: dict[str, str], unsupported: dict[str, str]) -> dict[str, Any]:
    devices = trainer.take("devices")
    if isinstance(devices, str) and devices.isdecimal() and len(devices) < 10:
        devices = int(devices)
    if isinstance(devices, list):
        count = max(1, len(devices))
    elif devices in (None, "auto", -1, "-1"):
        count = 1
        assumed["gpus"] = "one GPU: trainer.devices leaves it open (--set gpus.count=N)"
    else:
        count = trainer.whole("devices") or 1
    gpus: dict[str, Any] = {"count": count * (trainer.whole("num_nodes") or 1)}
    value = trainer.take("strategy")
    if isinstance(value, dict):
        section = trainer.section("strategy")
        name = (section.text("class_path") or "").rpartition(".")[2]
        name = _CLASSES.get(name, name)
        options = section.section("init_args")
        gpus |= _STRATEGIES.get(name, {})
        for field in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view"):
            if options.flag(field):
                gpus[field] = True
        stage = options.whole("stage", least=0, most=3)
        gpus |= {"zero_stage": stage} if stage is not None and name == "deepspeed" else {}
    else:
        name = trainer.text("strategy") or "auto"
    if name not in _STRATEGIES:
        unsupported["gpus"] = f"trainer.strategy: {name} is not modelled; --set gpus.strategy=ddp predicts with that"
        return gpus
    return {**_STRATEGIES[name], **gpus}


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    match aspect:
        case "batch" if (place := _place_of_batch(keys)) is not None:
            return {place: job.effective_sizes["batch"]}
        case "accumulation":
            return {("trainer", "accumulate_grad_batches"): job.accumulation}
        case "precision":
            names = [
                name for name, precision in _PRECISIONS.items() if same_precision(Precision(**precision), job.precision)
            ]
            return {("trainer", "precision"): max(names, key=len)} if names else {}
        case "gpus" if type(keys.section("trainer").take("devices")) is int:
            nodes = keys.section("trainer").whole("num_nodes") or 1
            return {("trainer", "devices"): job.gpus.count // nodes}
        case "buckets":
            trainer, place = keys.section("trainer"), ("trainer", "strategy")
            if isinstance(trainer.take("strategy"), dict):
                return {(*place, "init_args", "gradient_as_bucket_view"): job.gpus.gradient_as_bucket_view}
            if trainer.take("strategy") not in (None, "auto", "ddp"):
                return {}
            arguments = {"gradient_as_bucket_view": job.gpus.gradient_as_bucket_view}
            return {place: {"class_path": "lightning.pytorch.strategies.DDPStrategy", "init_args": arguments}}
        case "optimizer" if "class_path" in keys.section("optimizer") and len(job.optimizer) == 1:
            wish = job.optimizer[0]
            path = class_path(wish.name) if wish.factory is None else None
            if path is None:
                return {}
            arguments = dict(wish.arguments)
            return {("optimizer", "class_path"): path, **_arguments(keys.section("optimizer"), arguments)}
    return {}


def _arguments(section: Keys, wanted: dict[str, Any]) -> Edits:
    """One by one where they only grow, so that the others stay as they are."""
    now = section.section("init_args").as_dict()
    if set(now) <= set(wanted) and now:
        return {("optimizer", "init_args", name): value for name, value in wanted.items() if now.get(name) != value}
    return {("optimizer", "init_args"): wanted}
