"""The rates of a card, from its specification."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from vramcast.gpus.spec import GpuSpec

# FP32 lanes of a multiprocessor: CUDA C++ Programming Guide, "Arithmetic Instructions". All of them issue from four
# schedulers of 32 threads, whatever the lanes.
_FP32_LANES = {(6, 0): 64, (7, 0): 64, (7, 5): 64, (8, 0): 64}
_ISSUE_LANES = 128
# Capabilities whose FP64 rate is half the FP32 rate; on the others it is 1/64 or 1/32.
_FAST_DOUBLE = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
# What a card of unknown figures is taken to be: a mid-range card of today.
_DEFAULT_SMS = 64
_DEFAULT_BANDWIDTH = 6e11
_DEFAULT_FP32 = 25e12
_DEFAULT_L2_BYTES = 32 * 2**20
# Reads served by the L2 cache come this much faster than those from memory (H100: 5.5 to 7 TB/s against 3.35,
# chipsandcheese.com and the Hopper microbenchmarks of arXiv 2402.13499; A100: about 2.3 times the bandwidth of HBM,
# NVIDIA A100 architecture whitepaper).
L2_SPEEDUP = 2.5


@dataclass(frozen=True)
class Card:
    """Peak rates, each per second."""

    spec: GpuSpec

    @cached_property
    def sms(self) -> int:
        return self.spec.sm_count or _DEFAULT_SMS

    @cached_property
    def bandwidth(self) -> float:
        return self.spec.bandwidth_bytes_per_second or _DEFAULT_BANDWIDTH

    @cached_property
    def l2_bytes(self) -> int:
        return self.spec.l2_bytes or _DEFAULT_L2_BYTES

    @cached_property
    def issue(self) -> float:
        """Simple instructions, counted by thread."""
        lanes = _FP32_LANES.get(self.spec.compute_capability, _ISSUE_LANES)
        return self.rate("f32") / 2 * _ISSUE_LANES / lanes

    @cached_property
    def clock(self) -> float:
        """Cycles of a multiprocessor."""
        return self.issue / (self.sms * _ISSUE_LANES)

    @cached_property
    def has_tf32(self) -> bool:
        return self.spec.compute_capability >= (8, 0)

    @cached_property
    def _rates(self) -> dict[str, float]:
        spec = self.spec
        f32 = spec.fp32_tflops * 1e12 if spec.fp32_tflops else _DEFAULT_FP32
        # A dtype without tensor cores is computed at the FP32 rate.
        tf32 = spec.tf32_tflops * 1e12 if spec.tf32_tflops else f32
        f16 = spec.fp16_tflops * 1e12 if spec.fp16_tflops else f32
        bf16 = spec.bf16_tflops * 1e12 if spec.bf16_tflops else f32
        f64 = f32 / (2 if spec.compute_capability in _FAST_DOUBLE else 64)
        if spec.compute_capability in ((8, 0), (9, 0)):
            f64 = f32  # FP64 tensor cores
        f8 = spec.fp8_tflops * 1e12 if spec.fp8_tflops else bf16
        return {"f32": f32, "tf32": tf32, "f16": f16, "bf16": bf16, "f64": f64, "f8": f8}

    def rate(self, unit: str) -> float:
        """Floating point operations a second of a unit: f32, tf32, f16, bf16, f64, f8."""
        return self._rates.get(unit, self._rates["f32"])

    def least_seconds(self, flops: float, unit: str, moved: float) -> float:
        """No kernel is faster: its arithmetic at the peak, its bytes at the bandwidth.

        What fits the L2 cache may have been left there by the kernel before and need not go to memory at once: only
        the rest is held to the memory's bandwidth, and everything to the cache's.
        """
        beyond = max(moved - self.l2_bytes, 0.0) / self.bandwidth
        return max(flops / self.rate(unit), beyond, moved / (self.bandwidth * L2_SPEEDUP))
