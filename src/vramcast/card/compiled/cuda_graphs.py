"""CUDA graphs of compiled code (mode="reduce-overhead"), which torch keeps in trees that share one private pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches


def install(put: Patches, machine: Machine) -> None:
    from torch._inductor import compile_fx, output_code

    def cudagraphify(
        model: Callable[..., Any], static_input_idxs: Sequence[int] = (), **options: Any
    ) -> Callable[..., Any]:
        machine.note(
            "CUDA graphs",
            "compiled code is predicted without CUDA graphs: their private pool, and the copies of inputs in it, "
            "are not counted",
        )
        return model

    put.set(compile_fx, "cudagraphify", cudagraphify)
    if hasattr(output_code, "cudagraphify"):
        put.set(output_code, "cudagraphify", cudagraphify)
