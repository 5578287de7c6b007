"""Whether float32 products may be computed in TF32. Both of torch's ways to say so are in use, and each refuses to read
what was set in the other."""

from __future__ import annotations

from typing import Any

import torch


def in_matmul() -> bool:
    settings: Any = torch.backends.cuda.matmul
    try:
        return bool(settings.allow_tf32)
    except RuntimeError:
        return bool(settings.fp32_precision == "tf32")


def in_cudnn() -> bool:
    settings: Any = torch.backends.cudnn
    try:
        return bool(settings.allow_tf32)
    except RuntimeError:
        return bool(settings.conv.fp32_precision == "tf32")
