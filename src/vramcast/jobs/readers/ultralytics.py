"""ultralytics: the YAML of `yolo train cfg=...` (args.yaml of a run) and the command, for detection, segmentation,
classification, poses and oriented boxes. The library's own network, loss, optimizer and average run on pictures that
are made up."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from vramcast.base.access import CodePlace
from vramcast.base.errors import CannotPredict, UsageError
from vramcast.jobs.readers import Edits, Part, Reading, Request, combine
from vramcast.jobs.readers.code import factory_place
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.schema import Job
from vramcast.jobs.schema.training import MOST_ACCUMULATED
from vramcast.jobs.yaml_file import parse_yaml
from vramcast.trace import Note

NAME = "ultralytics config"
COMMAND = "yolo"

_FACTORY = "vramcast.jobs.training.yolo:training"
_OWN = ("imgsz", "close_mosaic", "hsv_h", "mosaic", "warmup_bias_lr", "nbs", "copy_paste", "overlap_mask")
_ENOUGH = 2
_TASKS = {"-seg": "segment", "-cls": "classify", "-pose": "pose", "-obb": "obb", "-sem": "semantic"}
"""End of a model's name → its task; the others detect."""
_MODELLED = ("detect", "segment", "classify", "pose", "obb")
_ALL_TASKS = (*_MODELLED, "semantic", "depth")
_MODES = ("train", "val", "predict", "export", "track", "benchmark")
_BATCH, _SIZE, _CLASSIFIED_SIZE, _NOMINAL = 16, 640, 224, 64
_STRIDE = 32
_BOXES = 20
"""Objects in a picture of a mosaic; the matrices that match them to predictions grow with the fullest picture."""
_FEW_ITERATIONS = 10_000
"""Up to so many, optimizer=auto takes AdamW."""
_CLASSES = 80
_KEYPOINTS = [17, 3]
_MODEL = re.compile(r"(yolo[a-z]*\d+)([nstbmlcex])((?:-[a-z0-9]+)*)$|(yolo[a-z]*\d+)((?:-[a-z0-9]+)*)$")
_SWITCHES = (
    "resume", "cos_lr", "single_cls", "rect", "exist_ok", "cache", "save", "plots", "val", "verbose", "compile",
)  # fmt: skip
"""Keys that a command may name without a value."""
_PASSED_ON = ("amp", "optimizer", "freeze", "overlap_mask", "mask_ratio", "dropout", "channels_last", "momentum")
"""Keys that the library reads itself."""
_NOT_MODELLED = {
    "compile": ("torch_compile", "torch.compile is not modelled here; leave it out"),
    "distill_model": ("components", "a teacher is not modelled; leave it out"),
    "quantize": ("components", "training for quantization is not modelled; leave it out"),
    "augmentations": ("inputs", "leave it out: augmentations run in the computer and take nothing of the card"),
}
_OF_PYTHON = ("save_dir", "augmentations")
"""Keys of args.yaml that the defaults have not."""
_FORMER = (
    "boxes", "crop_fraction", "end2end", "fl_gamma", "half", "hide_conf", "hide_labels", "hydra", "image_weights",
    "int8", "keras", "label_smoothing", "line_thickness", "min_memory", "save_hybrid", "v5loader", "val_period",
)  # fmt: skip
"""Keys that earlier versions wrote into args.yaml; no training step took other memory for them."""
_KNOWN = frozenset((
    "task", "mode", "epochs", "time", "patience", "save", "save_period", "cache", "workers", "project", "name",
    "exist_ok", "pretrained", "cls_remap", "verbose", "seed", "deterministic", "single_cls", "rect", "cos_lr",
    "close_mosaic", "resume", "fraction", "profile", "val", "split", "save_json", "conf", "iou", "max_det", "half",
    "dnn", "plots", "nms", "source", "vid_stride", "stream_buffer", "visualize", "augment", "agnostic_nms", "classes",
    "retina_masks", "embed", "show", "save_frames", "save_txt", "save_conf", "save_crop", "show_labels", "show_conf",
    "show_boxes", "line_width", "format", "keras", "optimize", "int8", "dynamic", "simplify", "opset", "workspace",
    "lr0", "lrf", "weight_decay", "warmup_epochs", "warmup_momentum", "warmup_bias_lr", "dis", "box", "cls", "cls_pw",
    "dfl", "pose", "kobj", "rle", "angle", "dlog", "dgrad", "dlam", "hsv_h", "hsv_s", "hsv_v", "degrees", "translate",
    "scale", "shear", "perspective", "flipud", "fliplr", "bgr", "mosaic", "mixup", "cutmix", "copy_paste",
    "copy_paste_mode", "auto_augment", "erasing", "crop_fraction", "cfg", "tracker", "save_dir", "save_hybrid",
    "label_smoothing", "nbs",
))  # fmt: skip
"""Without effect on the memory of a training step."""


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml")
    return sum(name in keys for name in _OWN) >= _ENOUGH


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    return _Reader(Keys.of(read_document(path), str(path)), path.parent, request).part()


def is_one(words: Sequence[str]) -> bool:
    return bool(words) and os.path.basename(words[0]) == COMMAND


def part_from_words(words: Sequence[str], folder: Path, where: str, request: Request) -> Part:
    """`yolo detect train model=yolo11n.yaml imgsz=640`."""
    said: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if equals:
            said[name.lstrip("-")] = parse_yaml(value, where)[0] if value else None
        elif word in _ALL_TASKS:
            said["task"] = word
        elif word in _MODES:
            said["mode"] = word
        elif word in _SWITCHES:
            said[word] = True
        else:
            raise UsageError(f"{where}: {word}: yolo takes a task, a mode and name=value, e.g. imgsz=640")
    file = said.pop("cfg", None)
    if file is not None:
        path = folder / str(file)
        said = {**dict(read_document(path if path.is_file() else Path(str(file))).data), **said}
    return _Reader(Keys(said, where), folder, request).part()


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    sizes = job.effective_sizes
    match aspect:
        case "batch":
            return {("batch",): sizes["batch"]}
        case "resolution":
            return {("imgsz",): sizes["height"]}
    return {}


class _Reader:
    def __init__(self, keys: Keys, folder: Path, request: Request) -> None:
        self._keys, self._folder, self._request = keys, folder, request
        self._notes: list[Note] = []
        self._assumed: dict[str, str] = {}
        self._unsupported: dict[str, str] = {}

    def part(self) -> Part:
        keys = self._keys
        mode = keys.text("mode", _MODES) or "train"
        if mode != "train":
            raise CannotPredict(f"{keys.where}: mode {mode}: of ultralytics, training is modelled; say mode=train")
        name = self._request.model or keys.text("model") or "yolo26n.pt"
        keys.ignore("model")
        task = _task(keys.text("task", _ALL_TASKS), name)
        if task not in _MODELLED:
            raise CannotPredict(
                f"{keys.where}: task {task}: of ultralytics, {', '.join(_MODELLED)} are modelled; a script of two "
                f"lines, `from ultralytics import YOLO` and `YOLO({name!r}).train(...)`, is run by `vramcast run`"
            )
        place = _library(keys.where)
        self._check_names(place)
        model = self._model(name, place)
        for key, (field, text) in _NOT_MODELLED.items():
            if keys.take(key):
                self._unsupported[field] = f"{key}: {text}"
        batch, passes = self._batch()
        settings = {key: value for key in _PASSED_ON if (value := keys.take(key)) is not None}
        self._optimizer(settings)
        data = self._dataset(place)
        arguments: dict[str, Any] = {
            "task": task, "model": model, "classes": self._classes(data), "accumulation": passes,
            "iterations": _FEW_ITERATIONS, "settings": settings,
        }  # fmt: skip
        if task == "pose":
            arguments["keypoints"] = self._keypoints(data)
        sizes = {"batch": batch, "height": self._size(task)}
        if task != "classify":
            sizes["boxes"] = _BOXES
            self._assumed["sizes.boxes"] = f"{_BOXES} objects in every picture, after mosaic (--set sizes.boxes=50)"
        self._notes += unused_note(keys.unused(_KNOWN), keys.where)
        self._request.gate.typed(_our_own())
        return Part(
            data={
                "name": Path(model).stem, "step": {"factory": _FACTORY, "arguments": arguments}, "sizes": sizes,
                "accumulation": passes,
            },
            recognised_as=f"{NAME} ({task})", where=keys.where, notes=tuple(self._notes), assumed=self._assumed,
            unsupported=self._unsupported,
        )  # fmt: skip

    def _note(self, topic: str, text: str) -> None:
        self._notes.append(Note(topic, text, self._keys.where))

    def _check_names(self, place: Path) -> None:
        """Refuse what the installed version refuses."""
        defaults = place / "cfg" / "default.yaml"
        if defaults.is_file():
            self._keys.only({*read_document(defaults).data, *_OF_PYTHON, *_FORMER})

    def _model(self, name: str, place: Path) -> str:
        """A YAML of the user's or of the library's; weights have the name of theirs."""
        own = next((path for path in (self._folder / name, Path(name)) if path.suffix in (".yaml", ".yml")), None)
        if own is not None and own.is_file():
            return str(own.resolve())
        stem = PureWindowsPath(name).stem
        found = _MODEL.match(stem)
        family = "".join((found[1], found[3] or "") if found[1] else (found[4], found[5] or "")) if found else ""
        networks = place / "cfg" / "models"
        if not family or not any(any(networks.rglob(f"{one}.yaml")) for one in (family, stem)):
            self._keys.fail(
                "model",
                f"{name} is neither a YAML here nor one of ultralytics' networks: name the one that it was made "
                "from, e.g. --model yolo11n.yaml",
            )
        if Path(name).suffix not in (".yaml", ".yml"):
            self._note("model", f"{name}: the network of that name, without loading weights; they take the same memory")
        return f"{stem}.yaml"

    def _batch(self) -> tuple[int, int]:
        """Of the card, and passes of an optimizer step."""
        keys = self._keys
        said = keys.take("batch")
        batch = _BATCH if said is None else said
        if type(batch) is not int or batch < 1:
            self._unsupported["sizes.batch"] = (
                f"batch: {batch}: AutoBatch measures on the card how much fits; say a number (--batch 16), or ask for "
                "the largest: vramcast advise --largest"
            )
            batch = _BATCH
        device = str(keys.take("device") or "").strip("[]")
        count = len([one for one in device.split(",") if one.strip()])
        if count > 1:
            self._unsupported["gpus"] = (
                f"device: {count} GPUs are not modelled for ultralytics; device=0 batch={max(1, batch // count)} "
                "predicts one of them, without DDP's copy of the gradients"
            )
        passes = max(round((keys.whole("nbs") or _NOMINAL) / batch), 1)
        if passes > MOST_ACCUMULATED:
            self._note("accumulation", f"{MOST_ACCUMULATED} of {passes} passes of a step are run; the others are alike")
        return batch, min(passes, MOST_ACCUMULATED)

    def _size(self, task: str) -> int:
        keys = self._keys
        said = keys.take("imgsz")
        if isinstance(said, list) and said:
            said = max(said)
        size = said if said is not None else _CLASSIFIED_SIZE if task == "classify" else _SIZE
        if type(size) is not int or not 0 < size <= 16_384:
            keys.fail("imgsz", f"a whole number is needed, e.g. 640, not {size}")
        wider = keys.take("multi_scale")
        if wider and task != "classify":
            share = 0.5 if wider is True else float(wider)
            size = int(size * (1 + share))
            self._note("multi_scale", f"predicted for the largest pictures, {size} × {size}")
        return math.ceil(size / _STRIDE) * _STRIDE

    def _optimizer(self, settings: Mapping[str, Any]) -> None:
        if str(settings.get("optimizer", "auto")) == "auto":
            self._assumed["step.arguments.settings.optimizer"] = (
                f"AdamW, which optimizer=auto takes up to {_FEW_ITERATIONS:,} steps (optimizer=SGD)"
            )

    def _dataset(self, place: Path) -> Keys | None:
        """Its YAML: beside the config, here, or the library's."""
        data = self._keys.text("data")
        for folder in [Path(), self._folder, place / "cfg" / "datasets"] if data else []:
            if (folder / str(data)).is_file():
                return Keys.of(read_document(folder / str(data)), str(data))
        return None

    def _classes(self, data: Keys | None) -> int:
        if self._keys.flag("single_cls"):
            return 1
        if data is not None:
            names = data.take("names")
            return data.whole("nc") or (len(names) if isinstance(names, (list, dict)) and names else _CLASSES)
        named = self._keys.text("data")
        what = f"data: {named} is not found here" if named else "no data is named"
        self._assumed["step.arguments.classes"] = f"{_CLASSES} classes: {what} (--set step.arguments.classes=10)"
        return _CLASSES

    def _keypoints(self, data: Keys | None) -> list[int]:
        """How many, and numbers of each."""
        said = data.take("kpt_shape") if data is not None else None
        if isinstance(said, list) and len(said) == 2 and all(type(number) is int for number in said):
            return said
        self._assumed["step.arguments.keypoints"] = (
            f"{_KEYPOINTS[0]} keypoints, as of COCO's people (--set step.arguments.keypoints=[21,3])"
        )
        return _KEYPOINTS


def _task(said: str | None, model: str) -> str:
    """Weights bring their task, whatever is said; a YAML's name suggests one."""
    name = PureWindowsPath(model)
    suggested = next((task for ending, task in _TASKS.items() if name.stem.endswith(ending)), None)
    if suggested is not None and name.suffix == ".pt":
        return suggested
    return said or suggested or "detect"


def _our_own() -> CodePlace:
    return factory_place("", _FACTORY)


def _library(where: str) -> Path:
    """Where it is installed; its code is imported when the step is built."""
    spec = importlib.util.find_spec("ultralytics")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"{where}: this is a training with ultralytics, which is not installed: pip install ultralytics"
        )
    return Path(next(iter(spec.submodule_search_locations)))
