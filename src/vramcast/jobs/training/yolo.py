"""A training step of ultralytics' YOLO networks, made of the library's own model, loss, optimizer and average, on
batches of made-up pictures: as its trainer does, without a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from vramcast.jobs.building.libraries import library

_CLIPPING = 10.0
"""max_norm of the trainer's clip_grad_norm_."""


def training(
    *,
    task: str,
    model: str,
    classes: int,
    batch: int,
    height: int,
    boxes: int = 0,
    keypoints: Sequence[int] = (),
    accumulation: int = 1,
    iterations: int = 100_000,
    settings: Mapping[str, Any] | None = None,
) -> Callable[[], None]:
    """`keypoints`: how many an object has, and numbers of each. `settings`: arguments of `yolo train` that the library
    itself reads, such as amp, optimizer and freeze."""
    library("ultralytics", model)
    loop = _Loop(task, model, classes, dict(settings or {}), iterations, keypoints)
    pictures = _Pictures(task, loop.args, classes, batch, height, boxes, keypoints)

    def step() -> None:
        for _ in range(accumulation):
            loop.forward_and_backward(pictures.next())
        loop.optimizer_step()

    return step


class _Loop:
    """What the trainer keeps in its attributes."""

    def __init__(
        self, task: str, model: str, classes: int, settings: dict[str, Any], iterations: int, keypoints: Sequence[int]
    ) -> None:
        self.args = _module("cfg").get_cfg(overrides={"task": task, "mode": "train", "model": model, **settings})
        self._trainer = _trainer_class(task)
        self._stub = SimpleNamespace(args=self.args, data={"nc": classes}, device=torch.device("cuda"), stride=32)
        shape = {"data_kpt_shape": tuple(keypoints)} if keypoints else {}
        self.model = _model_class(task)(model, nc=classes, verbose=False, **shape).cuda()
        if keypoints:
            self.model.kpt_shape = list(keypoints)
        if getattr(self.args, "channels_last", False) in (None, True):
            self.model = self.model.to(memory_format=torch.channels_last)
        self.model.nc, self.model.args = classes, self.args
        self._freeze()
        self._half = torch.bfloat16 if self.args.amp == "bf16" else torch.float16
        self._amp = self.args.amp not in (False, "fp32")
        self._scaler = torch.amp.grad_scaler.GradScaler("cuda", enabled=self._amp and self.args.amp != "bf16")
        # The trainer's own, which needs of itself only the arguments and the number of classes.
        self.optimizer = self._trainer.build_optimizer(
            self._stub, model=self.model, name=self.args.optimizer, lr=self.args.lr0, momentum=self.args.momentum,
            decay=self.args.weight_decay, iterations=iterations,
        )  # fmt: skip
        self._average = _module("utils.torch_utils").ModelEMA(self.model)
        self.model.train()
        self.loss: Any = None
        self.loss_items: Any = None

    def _freeze(self) -> None:
        said = self.args.freeze
        numbers = said if isinstance(said, list) else range(said) if isinstance(said, int) else []
        names = [*(f"model.{number}." for number in numbers), ".dfl"]
        for name, parameter in self.model.named_parameters():
            if parameter.dtype.is_floating_point:
                parameter.requires_grad = not any(part in name for part in names)

    def forward_and_backward(self, batch: dict[str, Any]) -> None:
        with torch.autocast("cuda", dtype=self._half, enabled=self._amp):
            batch = self._trainer.preprocess_batch(self._stub, batch)
            loss, self.loss_items = self.model(batch)
            self.loss = loss.sum()
        self._scaler.scale(self.loss).backward()

    def optimizer_step(self) -> None:
        self._scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=_CLIPPING)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad()
        self._average.update(self.model)


class _Pictures:
    """Batches as the loader collates them, in the computer's memory. Boxes are spread over the picture."""

    def __init__(
        self, task: str, args: Any, classes: int, batch: int, height: int, boxes: int, keypoints: Sequence[int]
    ) -> None:
        self._task, self._batch, self._height = task, batch, height
        count = batch * boxes
        self._labels = {
            "cls": (torch.arange(count) % classes).float().view(-1, 1),
            "bboxes": _spread(count),
            "batch_idx": torch.arange(count).div(max(1, boxes), rounding_mode="floor").float(),
        }
        if task == "classify":
            self._labels = {"cls": torch.arange(batch) % classes}
        elif task == "segment":
            side = height // args.mask_ratio
            masks = (batch, side, side) if args.overlap_mask else (count, side, side)
            self._labels["masks"] = torch.zeros(masks, dtype=torch.uint8)
        elif task == "pose":
            self._labels["keypoints"] = torch.full((count, *keypoints), 0.5)
        elif task == "obb":
            self._labels["bboxes"] = torch.cat([_spread(count), torch.zeros(count, 1)], dim=1)

    def next(self) -> dict[str, Any]:
        dtype = torch.float32 if self._task == "classify" else torch.uint8
        return {"img": torch.zeros(self._batch, 3, self._height, self._height, dtype=dtype), **self._labels}


def _spread(count: int) -> torch.Tensor:
    """Middle, width and height of boxes, as shares of the picture."""
    numbers = torch.arange(count, dtype=torch.float32)
    middle_x, middle_y = 0.2 + 0.6 * (numbers * 0.618 % 1), 0.2 + 0.6 * (numbers * 0.382 % 1)
    size = 0.05 + 0.3 * (numbers * 0.271 % 1)
    return torch.stack([middle_x, middle_y, size, size], dim=1)


def _module(name: str) -> Any:
    return library(f"ultralytics.{name}", "YOLO")


def _model_class(task: str) -> Any:
    names = {
        "detect": "DetectionModel", "segment": "SegmentationModel", "classify": "ClassificationModel",
        "pose": "PoseModel", "obb": "OBBModel",
    }  # fmt: skip
    return getattr(_module("nn.tasks"), names[task])


def _trainer_class(task: str) -> Any:
    names = {
        "detect": "DetectionTrainer", "segment": "SegmentationTrainer", "classify": "ClassificationTrainer",
        "pose": "PoseTrainer", "obb": "OBBTrainer",
    }  # fmt: skip
    return getattr(_module(f"models.yolo.{task}"), names[task])
