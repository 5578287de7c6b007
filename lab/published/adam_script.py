"""Run torchao's benchmark of optimizers with empty images and fresh weights: the program for the virtual card.

adam_script.py PROGRAM [options of the benchmark]
"""

from __future__ import annotations

import runpy
import sys
from typing import Any
from unittest.mock import MagicMock

import timm
import torch

IMAGES = 18_900
"""In the training part of resisc45."""


class Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """What the benchmark makes of its images: as large as the model's input, in float32."""

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.zeros(3, 224, 224), "label": 0}

    def select_columns(self, names: list[str]) -> Images:
        return self

    def set_transform(self, transform: Any) -> None: ...


def main() -> None:
    for name in ("bitsandbytes", "wandb", "datasets"):
        sys.modules[name] = MagicMock()  # another maker's optimizers, logs and images, of which none is used
    sys.modules["datasets"].load_dataset = lambda *args, **settings: Images()  # type: ignore[attr-defined]
    create = timm.create_model
    timm.create_model = lambda name, pretrained, **settings: create(name.removeprefix("timm/"), **settings)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
