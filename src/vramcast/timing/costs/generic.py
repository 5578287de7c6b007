"""Kernels of a card that nobody calibrated: one share of the ideal for each kind, and one launch.

The shares were set by hand and are not fitted. What a kernel does for each element (instructions, passes over memory;
see families/) is a matter of its code, not of the card; where no source says, it was read off the H200's times. The
error of this mode, on the H200 and on cards that others measured, is in docs/lab/operator-times.md.
"""

from __future__ import annotations

from vramcast.gpus.spec import GpuSpec
from vramcast.timing.costs.part import Part

# A kernel that does nothing occupies the device for about this long: 1 to 2 µs on cards from Volta to Hopper.
LAUNCH_SECONDS = 1.5e-6
# Large matrix products reach 66 to 86 % of the peak on H100 and A100 and nearly all of it on an RTX 4090; streaming
# kernels 85 to 92 % of the bandwidth (BabelStream); convolutions, attention and strided walks stay well below.
_SHARES = (
    ("gemm-f32", 0.85), ("gemm-half-", 0.25), ("gemm", 0.85), ("gemv", 0.6), ("conv-fwd", 0.6), ("conv", 0.5),
    ("grouped", 0.3), ("looped", 0.5), ("widened", 0.7),
    # What waits for itself: its ideal rests on cycles read off a card, not on a peak.
    ("depthwise-direct", 0.9), ("image-upsample_bilinear2d", 0.9), ("suppressed", 0.9), ("scan-outer", 0.9),
    ("recurrent-resident", 0.9),
    ("nll-loss", 0.9), ("depthwise", 0.8), ("attention", 0.5), ("elementwise-vector", 0.88), ("elementwise", 0.75),
    ("copy-to", 0.25), ("copy", 0.85), ("fill", 0.85), ("cat", 0.7), ("reduce", 0.6), ("softmax", 0.7),
    ("log-softmax", 0.7), ("layer-norm", 0.7), ("rms-norm", 0.7), ("group-norm", 0.6), ("batch-norm", 0.7),
    ("cudnn-batch-norm", 0.7),
    ("triton-compute", 0.9), ("triton-pointwise", 0.88), ("triton-persistent", 0.82), ("triton-reduction", 0.75),
    ("foreach", 0.75), ("fused-optimizer", 0.8), ("gather", 0.5), ("scatter", 0.2), ("image", 0.3),
)  # fmt: skip
_DEFAULT_SHARE = 0.6
# FlashAttention 2 lacks the tensor core instructions of Hopper: it reaches 35 % of an H100's peak (arXiv
# 2407.08608), and 33 to 43 % by the H200's calibration.
_FLASH_ON_HOPPER_SHARE = 0.35


LARGEST_TILE_SHARE = 1 / 1.1875
"""What a product of tiles of 256 x 128 reaches by `families/gemm.py` before any share is taken."""


def seconds(part: Part, spec: GpuSpec) -> float:
    share = next((share for prefix, share in _SHARES if part.kind.startswith(prefix)), _DEFAULT_SHARE)
    if spec.compute_capability[0] == 9 and part.kind.startswith("attention-flash"):
        share = _FLASH_ON_HOPPER_SHARE
    if part.kind == "gemm-half" and spec.sustained_bf16_tflops and spec.bf16_tflops:
        share = spec.sustained_bf16_tflops / spec.bf16_tflops / LARGEST_TILE_SHARE
    return part.kernels * LAUNCH_SECONDS + part.base / share
