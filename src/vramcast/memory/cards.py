"""Which cards hold a run: the trace replayed under the limit of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vramcast.gpus import GpuSpec
from vramcast.memory.lengthening import lengthened
from vramcast.memory.margin import has_many_convolutions, margin_for
from vramcast.memory.prediction import Prediction, context_on
from vramcast.memory.replay import replay
from vramcast.trace import StepTrace


@dataclass(frozen=True, slots=True)
class CardFit:
    gpu: GpuSpec
    fits: bool
    device_bytes: int
    """What the run takes on the card, context and kernels included; what it would need where it does not fit."""
    limit_bytes: int
    comfortable: bool
    """It fits with the margin."""

    @property
    def headroom_bytes(self) -> int:
        return self.limit_bytes - self.device_bytes


def card_fits(
    trace: StepTrace, gpus: Iterable[GpuSpec], allocator_conf: str | None = None, known: Prediction | None = None
) -> tuple[CardFit, ...]:
    """Only cards whose limit lies between what is allocated and what would be reserved need a replay of their own.

    `known`, a prediction of the same trace, saves the replay without a limit."""
    run = lengthened(trace)
    if known is not None and not (known.fits and known.retries):  # its figures are those without a limit
        needed_bytes, least_bytes = known.peak_reserved_bytes, known.peak_allocated_bytes
    else:
        free = replay(run, allocator_conf, None)
        needed_bytes, least_bytes = free.peak_reserved.reserved_bytes, free.peak_allocated.allocated_bytes
    more_bytes = 0 if known is None else known.reserved_range[1] - known.peak_reserved_bytes
    many_convolutions = has_many_convolutions(trace)
    notes = trace.notes if known is None else known.notes
    fits = []
    for gpu in gpus:
        context_bytes = context_on(trace, gpu)
        capacity = gpu.total_memory_bytes - context_bytes
        reserved = needed_bytes
        if capacity >= needed_bytes:
            ok = True
        elif capacity < least_bytes:
            ok = False
        else:
            limited = replay(run, allocator_conf, capacity)
            ok = limited.completed
            reserved = limited.peak_reserved.reserved_bytes if ok else needed_bytes
        device_bytes = reserved + context_bytes
        margin = margin_for(gpu.id, notes, many_convolutions=many_convolutions)
        comfortable = ok and margin.upper(device_bytes + more_bytes) <= gpu.total_memory_bytes
        fits.append(CardFit(gpu, ok, device_bytes, gpu.total_memory_bytes, comfortable))
    return tuple(fits)
