"""nnU-Net's plans (nnUNetPlans.json, plans.json), of version 2 and of its older format, with dataset.json beside them.
The configuration 3d_fullres is predicted, or another as `nnUNetPlans.json#2d`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.code_places import code_in
from vramcast.jobs.readers import Edits, Reading, Request
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys
from vramcast.jobs.schema import Job
from vramcast.jobs.validation import make_job
from vramcast.trace import Note

NAME = "nnU-Net plans"

_NETWORK, _LOSS = (f"vramcast.jobs.networks.nnunet:{name}" for name in ("NnUNet", "dice_and_cross_entropy"))
_FIRST = ("3d_fullres", "3d_lowres", "2d")
"""Which configuration is the job; the others are its scenarios."""
_DATASET = "dataset.json"
_CLASSES = ("PlainConvUNet", "ResidualEncoderUNet")
_SIZES = ("depth", "height", "width")
_INHERITS = "inherits_from"
_USUAL = {
    "conv_bias": True, "dropout_op": None, "norm_op": "InstanceNorm", "nonlin": "LeakyReLU", "nonlin_first": False,
    "conv_op": "Conv",
}  # fmt: skip
_OLDER = (
    "UNet_class_name", "UNet_base_num_features", "unet_max_num_features", "n_conv_per_stage_encoder",
    "n_conv_per_stage_decoder", "conv_kernel_sizes", "pool_op_kernel_sizes",
)  # fmt: skip
_NOT_OF_THE_CARD = frozenset((
    "data_identifier", "preprocessor_name", "median_image_size_in_voxels", "spacing", "normalization_schemes",
    "use_mask_for_norm", "resampling_fn_data", "resampling_fn_seg", "resampling_fn_data_kwargs",
    "resampling_fn_seg_kwargs", "resampling_fn_probabilities", "resampling_fn_probabilities_kwargs", "batch_dice",
    "next_stage", "num_pool_per_axis",
))  # fmt: skip


def recognises(path: Path) -> bool:
    keys = peek(path, ".json")
    found = keys.get("configurations")
    return isinstance(found, dict) and any(isinstance(one, dict) and "patch_size" in one for one in found.values())


@dataclass(frozen=True, slots=True)
class _Data:
    channels: int
    classes: int


def read(path: Path, request: Request) -> Reading:
    document = read_document(path)
    keys = Keys.of(document, str(path))
    every = keys.section("configurations")
    notes: list[Note] = []
    unsupported: dict[str, str] = {}
    assumed: dict[str, str] = {}
    data = _data(path, unsupported)
    names = [name for name in every if not name.startswith("_")]
    main = next((name for name in _FIRST if name in names), names[0])
    jobs: dict[str, dict[str, Any]] = {}
    for name in names:
        refused: dict[str, str] = {}
        configuration = Keys(_inherited(every, name), str(path), document.line_of, ("configurations", name))
        fields = _fields(configuration, data, refused, has_before="previous_stage" in configuration)
        if name == main:
            unsupported |= refused
        if not refused or name == main:
            jobs[name] = fields
    if data is None:
        more = "(--set components.model.arguments.classes=3)"
        assumed["components"] = f"background and one class, since there is no {_DATASET} beside it {more}"
    job = {
        "name": f"{keys.text('dataset_name') or path.stem} {main}",
        **jobs[main],
        "precision": {"preset": "fp16"},
        "optimizer": {"name": "sgd", "arguments": {"momentum": 0.99, "nesterov": True, "weight_decay": 3e-5}},
        "gradient_clipping": 12.0,
        "torch_compile": True,
        "cudnn_benchmark": True,
        "outputs_live_until": "step",
        "scenarios": {name: _as_changes(fields) for name, fields in jobs.items() if name != main},
    }
    others = [name for name in jobs if name != main]
    if others:
        text = f"{main}; others as {path.name}#{others[0]}" + (f" ({', '.join(others)})" if len(others) > 1 else "")
        notes.append(Note("configuration", text))
    made = make_job(job, str(path))
    request.gate.typed(*code_in(made, str(path)))  # network and loss are our own
    return Reading(
        job=made, recognised_as=f"{NAME} ({main})", notes=tuple(notes), assumed=assumed, unsupported=unsupported
    )


def _data(path: Path, unsupported: dict[str, str]) -> _Data | None:
    """Channels and classes, from dataset.json."""
    place = path.parent / _DATASET
    if not os.path.isfile(place):
        return None
    keys = Keys.of(read_document(place), str(place))
    channels = keys.take("channel_names") or keys.take("modality")
    labels = keys.take("labels")
    if not isinstance(channels, Mapping) or not isinstance(labels, Mapping) or not channels or len(labels) < 2:
        raise UsageError(
            f'{place}: channel_names and labels are needed, e.g. {{"0": "CT"}} and {{"background": 0, ...}}'
        )
    if any(isinstance(value, list) for value in labels.values()):
        unsupported["loss"] = f"labels: regions of several labels ({_DATASET}) have another loss, which is not modelled"
    if "ignore" in labels:
        unsupported["loss"] = f"labels: a loss that ignores a label ({_DATASET}) is not modelled"
    return _Data(len(channels), len(labels))


def _inherited(every: Keys, name: str, depth: int = 0) -> dict[str, Any]:
    """A configuration with what it inherits."""
    own = every.section(name).as_dict()
    parent = own.get(_INHERITS)
    if parent is None:
        return own
    if not isinstance(parent, str) or parent not in every or depth > 10:
        every.section(name).fail(_INHERITS, f"there is no configuration {parent!r}")
    return {**_inherited(every, parent, depth + 1), **{key: one for key, one in own.items() if key != _INHERITS}}


def _fields(keys: Keys, data: _Data | None, unsupported: dict[str, str], *, has_before: bool) -> dict[str, Any]:
    """components, inputs, sizes and loss of one configuration."""
    patch, batch = keys.wholes("patch_size"), keys.whole("batch_size")
    if batch is None:
        keys.need("batch_size", "2")
    if patch is None or not 2 <= len(patch) <= 3 or min(patch) < 1:
        keys.fail("patch_size", "two or three sizes are needed, e.g. [128, 128, 128]")
    arguments = _network(keys, len(patch), unsupported)
    schemes = keys.take("normalization_schemes")
    found = data or _Data(len(schemes) if isinstance(schemes, list) and schemes else 1, 2)
    channels = found.channels + (found.classes - 1 if has_before else 0)
    keys.ignore("previous_stage")
    names = list(_SIZES[-len(patch) :])
    outputs = len(arguments["features"]) - 1
    inputs: dict[str, Any] = {"data": {"shape": ["batch", channels, *names], "pinned": True}}
    factors = [1] * len(patch)
    loss: list[dict[str, Any]] = []
    for i in range(outputs):
        factors = [factor * step for factor, step in zip(factors, arguments["strides"][i], strict=True)]
        smaller = [f"{name} // {by}" if by > 1 else name for name, by in zip(names, factors, strict=True)]
        target = {"shape": ["batch", 1, *smaller], "dtype": "int16", "below": found.classes, "pinned": True}
        inputs[f"target_{i}"] = target
        if i < outputs - 1 or outputs == 1:  # the smallest output has no weight
            loss.append({
                "kind": "factory", "factory": _LOSS, "prediction": f"model.{i}", "target": f"target_{i}",
                "weight": 0.5**i,
            })  # fmt: skip
    model = {"factory": _NETWORK, "arguments": {"channels": channels, "classes": found.classes, **arguments}}
    unknown = [name for name in keys.unused(_NOT_OF_THE_CARD) if name.rpartition(".")[2] not in _NOT_OF_THE_CARD]
    if unknown:
        unsupported["components"] = f"{unknown[0]}: not known, and it may change the network"
    return {
        "components": {"model": {**model, "inputs": ["data"]}},
        "inputs": inputs,
        "sizes": {"batch": batch, **dict(zip(names, patch, strict=True))},
        "loss": loss,
    }


def _network(keys: Keys, dimensions: int, unsupported: dict[str, str]) -> dict[str, Any]:
    architecture = keys.section("architecture")
    named = architecture.text("network_class_name") or keys.text("UNet_class_name")
    if named is None:
        keys.need("architecture", '{"network_class_name": ...}')
    kind = named.rpartition(".")[2]
    if kind not in _CLASSES:
        unsupported["components"] = f"{named}: this network is not known; {' and '.join(_CLASSES)} are"
    is_residual = kind == "ResidualEncoderUNet" or "n_blocks_per_stage" in architecture.section("arch_kwargs")
    if "architecture" not in keys:
        features = _older_features(keys)
        encoder, kernels, strides = "n_conv_per_stage_encoder", "conv_kernel_sizes", "pool_op_kernel_sizes"
        place = keys
    else:
        place = architecture.section("arch_kwargs")
        encoder = "n_blocks_per_stage" if is_residual else "n_conv_per_stage"
        kernels, strides = "kernel_sizes", "strides"
        features = place.wholes("features_per_stage") or []
        _check_usual(place, unsupported)
        place.whole("n_stages")
        architecture.ignore("_kw_requires_import")
        keys.ignore(*_OLDER)  # nnU-Net reads them only where there is no architecture
    stages = len(features)
    blocks, decoder = _each(place, encoder, stages), _each(place, "n_conv_per_stage_decoder", stages - 1)
    steps = _tuples(place, strides, stages, dimensions)
    return {
        "features": features, "kernels": _tuples(place, kernels, stages, dimensions), "strides": steps,
        "encoder": blocks, "decoder": decoder, "residual": is_residual,
    }  # fmt: skip


def _older_features(keys: Keys) -> list[int]:
    """They double from stage to stage."""
    base, most = keys.whole("UNet_base_num_features") or 32, keys.whole("unet_max_num_features") or 320
    stages = keys.take("n_conv_per_stage_encoder")
    return [min(base * 2**i, most) for i in range(len(stages) if isinstance(stages, list) else 0)]


def _check_usual(keys: Keys, unsupported: dict[str, str]) -> None:
    """Everything but the sizes is as nnU-Net's planners write it."""
    for name, usual in _USUAL.items():
        value = keys.take(name)
        same = value == usual if not isinstance(usual, str) else usual in str(value)
        if value is not None and not same:
            unsupported["components"] = f"{keys.name_of(name)}: {value!r:.60} is not modelled"
    for name in ("norm_op_kwargs", "dropout_op_kwargs", "nonlin_kwargs"):
        keys.section(name).as_dict()


def _each(keys: Keys, name: str, count: int) -> list[int]:
    value = keys.take(name)
    numbers = [value] * count if type(value) is int else value
    if (
        not isinstance(numbers, list)
        or len(numbers) != count
        or not all(type(one) is int and one > 0 for one in numbers)
    ):
        keys.fail(name, f"{count} whole numbers are needed, one for each stage")
    return numbers


def _tuples(keys: Keys, name: str, count: int, dimensions: int) -> list[list[int]]:
    value = keys.take(name)
    rows = [[one] * dimensions if type(one) is int else one for one in value] if isinstance(value, list) else []
    fits = all(
        isinstance(row, list) and len(row) == dimensions and all(type(one) is int and one > 0 for one in row)
        for row in rows
    )
    if len(rows) != count or not fits or not rows:
        keys.fail(name, f"{count} lists of {dimensions} whole numbers are needed, one for each stage")
    return rows


def _as_changes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario that replaces these fields as a whole, which nested ones would not."""
    changes: dict[str, Any] = {"components.model.arguments": {}, "loss": fields["loss"], "inputs": {}, "sizes": {}}
    for name, value in fields["components"]["model"]["arguments"].items():
        changes[f"components.model.arguments.{name}"] = value
    for section in ("inputs", "sizes"):
        changes |= {f"{section}.{name}": value for name, value in fields[section].items()}
    return changes


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    main = next((name for name in _FIRST if name in keys.section("configurations")), None)
    if main is None or "architecture" not in keys.section("configurations").section(main):
        return {}
    match aspect:
        case "batch":
            return {("configurations", main, "batch_size"): job.effective_sizes["batch"]}
    return {}
