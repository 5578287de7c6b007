"""Measure, on a CUDA GPU, the workspace of 1x1 convolutions of contiguous tensors, which cuDNN leaves to cuBLAS.

    python -m lab.measuring.sweep_pointwise OUT.csv SECONDS

One row a problem: operation, dtype, batch, channels, filters, height, width, and the bytes that lived only inside it.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch

_COUNTS = [3, 8, 12, 16, 20, 21, 24, 32, 40, 48, 64, 72, 80, 88, 96, 112, 120, 128, 144, 160, 176, 192, 224, 240, 256, 320, 336, 384, 416, 448, 480, 512, 528, 576, 640, 672, 704, 736, 768, 832, 896, 960, 1024, 1152, 1280, 1536, 2048]  # fmt: skip
_SIDES = [4, 5, 6, 7, 8, 10, 12, 13, 14, 15, 16, 17, 20, 24, 25, 28, 30, 32, 33, 35, 38, 40, 44, 48, 50, 56, 60, 64, 72, 75, 80, 88, 96, 100, 112, 128, 160, 176, 200]  # fmt: skip
_BATCHES = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 50, 64, 96, 100, 128, 256]
_DTYPES = [torch.float32, torch.float32, torch.float16, torch.bfloat16]
_LARGEST = 1 << 28
"""Numbers in a tensor."""


def main(out: Path, seconds: float) -> None:
    torch.backends.cudnn.allow_tf32 = True
    drawn = random.Random(7)
    deadline = time.monotonic() + seconds
    _warm_up()
    with out.open("w") as file:
        file.write("operation,dtype,batch,channels,filters,height,width,workspaces\n")
        while time.monotonic() < deadline:
            dtype, batch = drawn.choice(_DTYPES), drawn.choice(_BATCHES)
            channels, filters = drawn.choice(_COUNTS), drawn.choice(_COUNTS)
            height = drawn.choice(_SIDES)
            width = height if drawn.random() < 0.7 else drawn.choice(_SIDES)
            if batch * height * width * max(channels, filters) > _LARGEST:
                continue
            for operation, sizes in _measured(dtype, batch, channels, filters, height, width):
                name = str(dtype).removeprefix("torch.")
                file.write(f"{operation},{name},{batch},{channels},{filters},{height},{width},{sizes}\n")


def _measured(
    dtype: torch.dtype, batch: int, channels: int, filters: int, height: int, width: int
) -> list[tuple[str, str]]:
    x = torch.empty(batch, channels, height, width, device="cuda", dtype=dtype)
    w = torch.empty(filters, channels, 1, 1, device="cuda", dtype=dtype)
    y = torch.empty(batch, filters, height, width, device="cuda", dtype=dtype)
    settings = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    def backward(*mask: bool) -> None:
        torch.ops.aten.convolution_backward(y, x, w, None, *settings, [*mask, False])

    return [
        ("forward", _inside(lambda: torch.ops.aten.convolution(x, w, None, *settings))),
        ("backward_data", _inside(lambda: backward(True, False))),
        ("backward_weight", _inside(lambda: backward(False, True))),
    ]


def _inside(call: object) -> str:
    """Sizes that were taken and given back by the call, but for its result, which comes first."""
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=100, clear_history=True)
    call()  # type: ignore[operator]
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    sizes = [entry["size"] for entry in entries if entry["action"] == "alloc"]
    return " ".join(map(str, sizes[1:]))


def _warm_up() -> None:
    for dtype in set(_DTYPES):
        a = torch.zeros(64, 64, device="cuda", dtype=dtype)
        torch.bmm(a[None], a[None])
        torch.addmm(a[0], a, a)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
