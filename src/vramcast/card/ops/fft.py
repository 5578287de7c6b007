"""Fourier transforms (cuFFT)."""

from __future__ import annotations

from typing import Any

from vramcast.card.ops.registry import Call, kernel


@kernel("aten::_fft_c2c", "aten::_fft_r2c")
def transform(call: Call) -> Any:
    call.mode.machine.libraries.add("cufft")
    return call.run()


@kernel("aten::_fft_c2r")
def c2r(call: Call) -> Any:
    out = transform(call)
    x = call.args[0]
    call.scratch(x.numel() * x.element_size())  # cuFFT overwrites its input here, so it gets a copy
    return out
