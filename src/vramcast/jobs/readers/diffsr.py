"""DiffSR-style YAML (model, data, train, optimize): super-resolution of fields. The network is a Python class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.code_places import code_in
from vramcast.jobs.networks.kinds import job_of, kind_of_class
from vramcast.jobs.networks.kinds import named as named_kind
from vramcast.jobs.optimizer_names import plain
from vramcast.jobs.readers import Edits, Reading, Request
from vramcast.jobs.readers.code import (
    class_beside,
    code_note,
    factory_place,
    first_parameter,
    taken_by,
    typed_factory,
)
from vramcast.jobs.readers.diffsr_networks import plain_arguments
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.schema import Job
from vramcast.jobs.validation import make_job
from vramcast.trace import Note

NAME = "DiffSR config"

_SECTIONS = ("model", "data", "train", "optimize")
_BATCHES = ("train_batchsize", "batch_size")
_SIZES = ("depth", "height", "width")
_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
_ASSUMED = {
    "loss": "mean squared error (--set loss.kind=l1)",
    "inputs": "one coarse field in, one fine field as target",
}
_KNOWN = frozenset((
    "eval_batchsize", "eval_freq", "train_ratio", "valid_ratio", "test_ratio", "schedule", "log", "beta_schedule",
))  # fmt: skip
_DIFFUSION = ("ddpm", "sr3", "diffusion")


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml")
    model = keys.get("model")
    sections = [name for name in _SECTIONS if name in keys]
    return len(sections) >= 3 and "data" in sections and isinstance(model, dict) and "name" in model


def read(path: Path, request: Request) -> Reading:
    keys = Keys.of(read_document(path), str(path))
    model, data = keys.section("model"), keys.section("data")
    notes: list[Note] = []
    unsupported: dict[str, str] = {}
    name = model.text("name") or "model"
    named = request.model or class_beside(name, path.parent)
    if named is None:
        return _plain(name, path, keys, request)
    if any(word in name.lower() for word in _DIFFUSION):
        unsupported["step"] = (
            f"model.name: {name} is trained with noise and two inputs; write the step: --set step.factory=..."
        )
    if request.model:
        factory = typed_factory(request.model, path.parent, request.gate)
        notes.append(code_note(factory, "--model names it"))
    else:
        factory = named
        request.gate.check(factory_place("model.name", factory, str(path)))
        notes.append(code_note(factory, f"it has a class {name}"))
    arguments, left = taken_by(factory, {key: value for key, value in model.as_dict().items() if key != "name"})
    whole = first_parameter(factory) if not arguments else None
    if whole is not None:  # DiffSR's own classes take the section as one dict, and have channels last
        arguments, left = {whole: model.as_dict()}, []
    notes += unused_note([f"model.{key}" for key in left], f"{path}: {factory} takes no such argument")
    job = {
        "components": {"model": {"factory": factory, "arguments": arguments, "inputs": ["coarse"]}},
        **_inputs(model, data, channels_last=whole is not None),
        "loss": {"kind": "mse", "target": "fine"},
        **_training(path, keys),
    }
    if model.flag("use_checkpoint") and "use_checkpoint" not in arguments:
        job["checkpointing"] = {"scope": "all"}
    notes += unused_note(keys.unused(_KNOWN), str(path))
    return Reading(
        job=make_job(job, str(path)), recognised_as=f"{NAME} ({name})", notes=tuple(notes), assumed=_ASSUMED,
        unsupported=unsupported,
    )  # fmt: skip


def _training(path: Path, keys: Keys) -> dict[str, Any]:
    train = keys.section("train")
    return {
        "name": path.stem,
        "optimizer": _optimizer(keys.section("optimize")),
        "precision": {"preset": "fp16" if train.flag("use_amp") else "fp32"},
        "accumulation": train.whole("accumulation_steps") or 1,
        "gpus": _gpus(train, keys.section("data")),
        "zero_grad": "before-backward",
    }


def _plain(name: str, path: Path, keys: Keys, request: Request) -> Reading:
    """Without the class itself: a plain network of the kind that it is called after, at the file's sizes."""
    kind = kind_of_class(name)
    if kind is None:
        raise UsageError(
            f"{path}: model.name: {name!r} is a Python class that is not found beside the file: say where it is with "
            f"--model file.py:{name} or --model package.module:{name}"
        )
    model, data = keys.section("model"), keys.section("data")
    sizes = _inputs(model, data, channels_last=False)["sizes"]
    factor = data.whole("sample_factor") or 1
    width, layers, more = plain_arguments(kind, model, factor)
    network = job_of(kind, sizes, width, layers, **more)
    job = {**network, **_training(path, keys)}
    if kind in ("fno", "unet"):
        small = ["batch", more["in_channels"], f"height // {factor}", f"width // {factor}"]
        job["inputs"] = {
            "field": {"shape": small},
            "target": {"shape": ["batch", more["out_channels"], "height", "width"]},
        }
    if kind == "ddpm":
        job["inputs"]["noised"]["shape"][1] = more["in_channels"]
        job["inputs"]["noise"]["shape"][1] = more["out_channels"]
    if model.flag("use_checkpoint"):
        job["checkpointing"] = {"scope": "all"}
    for key in model.as_dict():
        model.take(key)
    said = job["components"]["model"]["arguments"]
    text = (
        f"the class {name} is not there: a plain {kind} with {said['layers']} {named_kind(kind).of} and "
        f"{said['width']} channels is taken; --model file.py:{name} predicts yours"
    )
    notes = (Note("assumed", text), *unused_note(keys.unused(_KNOWN), str(path)))
    made = make_job(job, str(path))
    request.gate.typed(*code_in(made, str(path)))  # the network is our own
    return Reading(job=made, recognised_as=f"{NAME} (plain {kind})", notes=notes)


def _inputs(model: Keys, data: Keys, *, channels_last: bool) -> dict[str, Any]:
    """`shape` is that of the fine field; the coarse one is smaller by sample_factor."""
    shape = data.wholes("shape")
    if shape is None or not 2 <= len(shape) <= 3 or min(shape) < 1:
        data.fail("shape", "two or three sizes of the fine field are needed, e.g. [128, 128]")
    factor = data.whole("sample_factor") or 1
    if any(size % factor for size in shape):
        data.fail("sample_factor", f"{shape} cannot be divided by {factor}")
    names = list(_SIZES[-len(shape) :])
    coarse = [f"{name} // {factor}" if factor > 1 else name for name in names]
    before, after = (
        _channels(model, ("in_dim", "in_channels", "in_channel")),
        _channels(model, ("out_dim", "out_channels")),
    )

    def shape_of(channels: int, sizes: list[str]) -> list[Any]:
        return ["batch", *sizes, channels] if channels_last else ["batch", channels, *sizes]

    return {
        "inputs": {"coarse": {"shape": shape_of(before, coarse)}, "fine": {"shape": shape_of(after, names)}},
        "sizes": dict(zip(names, shape, strict=True)),
    }


def _channels(model: Keys, names: tuple[str, ...]) -> int:
    return next((size for name in names if (size := model.whole(name)) is not None), 1)


def _optimizer(keys: Keys) -> dict[str, Any]:
    name = keys.text("optimizer") or "AdamW"
    if name.lower() not in _OPTIMIZERS:
        keys.fail("optimizer", f"there is no optimizer {name!r} in DiffSR; there is {', '.join(_OPTIMIZERS.values())}")
    momentum = keys.number("momentum") if name.lower() == "sgd" else None
    return {"name": name.lower(), "arguments": {"momentum": momentum} if momentum else {}}


def _gpus(train: Keys, data: Keys) -> dict[str, Any]:
    """Under DDP each process loads train_batchsize of its own; under DataParallel one batch is divided."""
    name = data.first(_BATCHES)
    place = data if name is not None else train
    batch = place.whole(name or "batch_size")
    if batch is None:
        data.need("train_batchsize", "8")
    ids = train.take("device_ids")
    shared = train.flag("distribute")
    count = len(ids) if shared and isinstance(ids, list) and ids else 1
    if _divided(train) and count > 1:
        if batch % count:
            place.fail(name or "batch_size", f"{batch}, of all GPUs, cannot be divided by {count} device_ids")
        return {"count": count, "strategy": "none", "global_batch": batch}
    return {"count": count, "global_batch": batch * count}


def _divided(train: Keys) -> bool:
    return train.text("distribute_mode", ("DDP", "DP")) == "DP"


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    data, train, sizes = keys.section("data"), keys.section("train"), job.effective_sizes
    match aspect:
        case "batch":
            name = data.first(_BATCHES)
            batch = sizes["batch"] * (job.gpus.count if _divided(train) else 1)
            return {("data", name) if name else ("train", "batch_size"): batch}
        case "accumulation":
            return {("train", "accumulation_steps"): job.accumulation}
        case "resolution":
            shape = data.wholes("shape") or []
            return {("data", "shape"): [sizes[name] for name in _SIZES[-len(shape) :]]}
        case "precision" if job.precision.preset in ("fp16", "fp32"):
            return {("train", "use_amp"): job.precision.preset == "fp16"}
        case "optimizer" if len(job.optimizer) == 1 and not job.optimizer[0].arguments:
            spelt = _OPTIMIZERS.get(plain(job.optimizer[0].name))
            return {("optimize", "optimizer"): spelt} if spelt else {}
        case "checkpointing" if job.checkpointing.scope != "modules":
            return {("model", "use_checkpoint"): job.checkpointing.scope == "all"}
    return {}
