"""Usual inputs of timm's and torchvision's models: images, and one class for each."""

from __future__ import annotations

from vramcast.jobs.building.built import Built
from vramcast.jobs.building.usual_inputs.usual import Usual, floats, integers
from vramcast.jobs.schema import Loss

_CROSS_ENTROPY = (Loss(kind="cross-entropy", target="labels"),)
_LARGER_IMAGES = {"inception_v3": 299, "efficientnet_b3": 300, "vit_h_14": 518}


def timm(class_name: str, built: Built) -> Usual | None:
    channels, height, width = built.config.get("input_size") or (3, 224, 224)
    return _classification(channels, height, width, int(built.config["num_classes"]))


def torchvision(class_name: str, built: Built) -> Usual | None:
    group, classes = built.config["group"], built.config["num_classes"]
    if group == "classification":
        size = _LARGER_IMAGES.get(built.config["name"], 224)
        return _classification(3, size, size, classes or 1000)
    if group == "segmentation":
        return Usual(
            inputs={
                "images": floats("batch", 3, "height", "width"),
                "labels": integers("batch", "height", "width", below=classes or 21),
            },
            call={"": "images"},
            sizes={"height": 520, "width": 520},
            loss=(Loss(kind="cross-entropy", target="labels"),),
        )
    if group == "video":
        size = 224 if "swin" in class_name.lower() or "mvit" in class_name.lower() else 112
        return Usual(
            inputs={
                "video": floats("batch", 3, "frames", "height", "width"),
                "labels": integers("batch", below=classes or 400),
            },
            call={"": "video"},
            sizes={"frames": 16, "height": size, "width": size},
            loss=_CROSS_ENTROPY,
        )
    return None


def _classification(channels: int, height: int, width: int, classes: int) -> Usual:
    return Usual(
        inputs={
            "images": floats("batch", channels, "height", "width"),
            "labels": integers("batch", below=classes),
        },
        call={"": "images"},
        sizes={"height": height, "width": width},
        loss=_CROSS_ENTROPY,
    )
