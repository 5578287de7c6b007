"""KAIR option files: JSON with // comments. The batch is that of all GPUs; the network is a Python class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.optimizer_names import plain
from vramcast.jobs.own_checkpointing import ARGUMENTS, EXEMPTED, SWITCHES, from_switches, switch_arguments
from vramcast.jobs.readers import Edits, Reading, Request
from vramcast.jobs.readers.code import (
    code_note,
    factory_place,
    is_there,
    search_in,
    taken_by,
    typed_factory,
    without_weight_files,
)
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.schema import Job
from vramcast.jobs.validation import make_job
from vramcast.trace import Note

NAME = "KAIR option file"
STEPS = "train.total_iter"
"""What it calls the number of optimizer steps."""

NETWORKS = {
    "vrt": ("models.network_vrt:VRT", "vrt:VRT"),
    "rvrt": ("models.network_rvrt:RVRT",),
    "swinir": ("models.network_swinir:SwinIR",),
    "dncnn": ("models.network_dncnn:DnCNN",),
    "rrdb": ("models.network_rrdb:RRDB",),
    "imdn": ("models.network_imdn:IMDN",),
    "drunet": ("models.network_unet:UNetRes",),
    "msrresnet1": ("models.network_msrresnet:MSRResNet1",),
}
"""netG.net_type → where KAIR keeps the class; taken when such a file lies beside the options or where we are."""

_LOSSES = {"l1": "l1", "l2": "mse", "l2sum": "mse", "charbonnier": "charbonnier"}
_OPTIMIZERS = ("adam", "adamw", "sgd")
_CROPS = ("gt_size", "H_size")
_OTHER_LOSSES = ("ssim",)
_ONE_STEP = ("plain", "vrt", "rvrt")
_NOT_FOR_THE_NETWORK = ("net_type", "init_type", "init_bn_type", "init_gain")
_KNOWN = frozenset((
    "path", "val", "test", "G_optimizer_reuse", "G_optimizer_lr", "G_optimizer_wd", "G_scheduler_type",
    "G_scheduler_periods", "E_param_strict", "G_param_strict", "G_scheduler_gamma", "G_scheduler_milestones",
    "checkpoint_test", "checkpoint_save", "checkpoint_print",
))  # fmt: skip


def recognises(path: Path) -> bool:
    keys = peek(path, ".json", ".jsonc")
    return "netG" in keys and ("datasets" in keys or "train" in keys)


def read(path: Path, request: Request) -> Reading:
    keys = Keys.of(read_document(path), str(path))
    notes: list[Note] = []
    unsupported: dict[str, str] = {}
    kind = keys.text("model") or "plain"
    if kind not in _ONE_STEP:
        unsupported["step"] = (
            f'model: "{kind}" trains with more than one network or input, not described here; write the '
            "step in Python: --set step.factory=package.module:function"
        )
    data = keys.section("datasets").section("train")
    job = {
        "name": keys.text("task") or path.stem,
        **_network(keys, path.parent, request, notes),
        **_inputs(keys, data),
        **_training(keys.section("train"), unsupported),
        "precision": {"preset": "fp32"},
        "gpus": _gpus(keys, data, notes),
        "pinned_batches": _pinned_batches(keys, data),
    }
    component: dict[str, Any] = job["components"]["network"]
    component |= _frozen_at_first(keys.section("train"))
    keys.section("netG").as_dict()
    notes += unused_note(keys.unused(_KNOWN), str(path))
    return Reading(
        job=make_job(job, str(path)), recognised_as=f"{NAME} ({component['factory']})", notes=tuple(notes),
        unsupported=unsupported,
    )  # fmt: skip


def _network(keys: Keys, folder: Path, request: Request, notes: list[Note]) -> dict[str, Any]:
    net = keys.section("netG")
    factory, why = _factory(net, folder, request)
    notes.append(code_note(factory, why))
    wanted = {name: value for name, value in net.as_dict().items() if name not in _NOT_FOR_THE_NETWORK}
    arguments, left = taken_by(factory, wanted)
    notes += unused_note([net.name_of(name) for name in left], f"{keys.where}: {factory} takes no such argument")
    arguments, loaded = without_weight_files(factory, arguments)
    notes += loaded
    switches = {name: value for name, value in arguments.items() if name in ARGUMENTS}
    taken, _ = taken_by(factory, dict.fromkeys(ARGUMENTS))
    for name in SWITCHES:
        net.flag(name)
    for name in EXEMPTED:
        net.wholes(name)
    arguments = {name: value for name, value in arguments.items() if name not in ARGUMENTS}
    component = {"factory": factory, "arguments": arguments, "inputs": ["L"]}
    return {"components": {"network": component}, "checkpointing": from_switches(switches, taken)}


def _factory(net: Keys, folder: Path, request: Request) -> tuple[str, str]:
    if request.model:
        return typed_factory(request.model, folder, request.gate), "--model names it"
    kind = net.text("net_type")
    if kind is None:
        net.need("net_type", '"vrt"')
    for place in dict.fromkeys((folder, Path())):
        for name in NETWORKS.get(kind, ()):
            if is_there(name.partition(":")[0], place):
                request.gate.check(factory_place(net.name_of("net_type"), name, net.where))
                search_in(place)
                return name, f"netG.net_type is {kind} and it lies in {place.resolve().name}"
    known = f" (looked for {' and '.join(NETWORKS[kind])})" if kind in NETWORKS else ""
    raise UsageError(
        f"{net.where}: netG.net_type: the class of {kind!r} is not found beside the options or here{known}: name it "
        "with --model package.module:Class or --model file.py:Class"
    )


def _inputs(keys: Keys, data: Keys) -> dict[str, Any]:
    """A clip or image in low quality (L) and its target (H)."""
    net = keys.section("netG")
    channels, scale = keys.whole("n_channels") or 3, keys.whole("scale") or 1
    frames = data.whole("num_frame")
    name = data.first(_CROPS) or _CROPS[0]
    crop = data.whole(name)
    if crop is None:
        data.need(name, "192")
    if crop % scale:
        data.fail(name, f"{crop} cannot be divided by the scale, {scale}")
    given = net.whole("in_nc") or net.whole("in_chans") or channels
    given += 1 if net.flag("nonblind_denoising") and given == channels else 0
    low = ["height", "width"] if scale == 1 else [f"height // {scale}", f"width // {scale}"]
    clip = ["batch"] if frames is None else ["batch", "frames"]
    return {
        "inputs": {
            "L": {"shape": [*clip, given, *low]},
            "H": {"shape": [*clip, net.whole("out_nc") or channels, "height", "width"]},
        },
        "sizes": {**({} if frames is None else {"frames": frames}), "height": crop, "width": crop},
    }


def _training(train: Keys, unsupported: dict[str, str]) -> dict[str, Any]:
    loss = train.text("G_lossfn_type", (*_LOSSES, *_OTHER_LOSSES)) or "l1"
    if loss in _OTHER_LOSSES:
        unsupported["loss"] = (
            f"train.G_lossfn_type: {loss} is not modelled; --set loss.kind=l1 predicts with that instead"
        )
    weight = train.number("G_lossfn_weight")
    optimizer = train.text("G_optimizer_type", _OPTIMIZERS) or "adam"
    job: dict[str, Any] = {
        "loss": {"kind": _LOSSES.get(loss, "l1"), "target": "H", "weight": 1.0 if weight is None else weight},
        "optimizer": {"name": optimizer},
    }
    decay = train.number("E_decay")
    if decay:
        job["ema"] = {"decay": decay, "update": "loop"}
    norm = train.number("G_optimizer_clipgrad")
    if norm:
        job["gradient_clipping"] = norm
    return job


def _frozen_at_first(train: Keys) -> dict[str, Any]:
    names, steps = train.names("fix_keys"), train.whole("fix_iter", least=0)
    return {"freeze": names, "freeze_steps": steps} if names and steps else {}


def _gpus(keys: Keys, data: Keys, notes: list[Note]) -> dict[str, Any]:
    """dataloader_batch_size is divided by the GPUs, under DDP and under DataParallel."""
    batch = data.whole("dataloader_batch_size")
    if batch is None:
        data.need("dataloader_batch_size", "8")
    count = max(1, len(keys.wholes("gpu_ids") or [0]))
    if batch % count:
        data.fail("dataloader_batch_size", f"{batch}, of all GPUs, cannot be divided by the {count} of gpu_ids")
    gpus: dict[str, Any] = {"count": count, "global_batch": batch}
    if keys.flag("dist"):
        gpus |= {"strategy": "ddp" if count > 1 else "none"}
        # KAIR looks for unused parameters unless told not to; that takes no memory, and reentrant checkpoints break it.
        gpus |= {"find_unused_parameters": bool(keys.flag("find_unused_parameters"))}
        gpus |= {"static_graph": bool(keys.flag("use_static_graph"))}
    else:
        gpus["strategy"] = "none"
        keys.ignore("find_unused_parameters", "use_static_graph")
        if count > 1:
            text = "without dist, KAIR uses DataParallel: one of the GPUs is predicted; the first also gathers outputs"
            notes.append(Note("not modelled", text))
    return gpus


def _pinned_batches(keys: Keys, data: Keys) -> int:
    """KAIR's loaders pin batches. Workers are divided by the GPUs under DDP, and each loads two batches ahead."""
    workers = data.whole("dataloader_num_workers", least=0) or 0
    count = max(1, len(keys.wholes("gpu_ids") or [0])) if keys.flag("dist") else 1
    return 1 + 2 * (workers // count)


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    data, sizes = ("datasets", "train"), job.effective_sizes
    match aspect:
        case "batch":
            return {(*data, "dataloader_batch_size"): sizes["batch"] * job.gpus.count}
        case "resolution" if sizes["height"] == sizes["width"]:
            name = keys.section("datasets").section("train").first(_CROPS)
            return {(*data, name): sizes["height"]} if name else {}
        case "frames" if keys.says((*data, "num_frame")):
            return {(*data, "num_frame"): sizes["frames"]}
        case "optimizer" if len(job.optimizer) == 1 and not job.optimizer[0].arguments:
            name = plain(job.optimizer[0].name)
            return {("train", "G_optimizer_type"): name} if name in _OPTIMIZERS else {}
        case "checkpointing" if job.checkpointing.scope != "modules":
            wanted = switch_arguments(job.checkpointing)
            return {("netG", name): value for name, value in wanted.items() if value or keys.says(("netG", name))}
        case "gpus" if not keys.says(("gpu_ids",)) or len(keys.wholes("gpu_ids") or []) != job.gpus.count:
            return {("gpu_ids",): list(range(job.gpus.count))}
    return {}
