"""What one trace says about other batches, without tracing them: a first answer, and it says that it is an estimate."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.features.advise.estimate import corners_of
from vramcast.memory.prediction import Prediction
from vramcast.memory.prediction import predict as predict_trace
from vramcast.trace.schema import FROZEN_WEIGHTS

_MOST = 1 << 20
EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True, slots=True)
class Room:
    """How far the activations could grow, or have to shrink, until the card is full but for the margin."""

    scale: float
    """Of the batch, where activations grow with it; 0: the rest alone is too large."""
    batch: int | None = None
    """The batch that this comes to, where the batch is known."""


def room(prediction: Prediction, batch: int | None = None) -> Room | None:
    """None where nothing is known of the allocations one by one, or the run is not known in full: weights that are
    trained later take what is left."""
    trace = prediction.trace
    if trace is None or prediction.at_least or prediction.outlook is not None:
        return None
    if prediction.fits and any(note.topic == FROZEN_WEIGHTS for note in prediction.notes):
        return None
    corners = corners_of(trace)
    allocated = max(growing + fixed for growing, fixed in corners)
    if not any(growing for growing, _ in corners) or not allocated:
        return None
    lost = max(0, prediction.peak_reserved_bytes - allocated) / allocated  # to rounding and fragmentation
    allowed_bytes = prediction.margin.within(prediction.limit_bytes)  # a batch that fills the card is no plain yes
    room_bytes = (allowed_bytes - prediction.context_bytes) / (1 + lost)
    scale = min((room_bytes - fixed) / growing for growing, fixed in corners if growing)
    if any(fixed > room_bytes for _, fixed in corners):
        scale = 0.0
    scale = max(0.0, min(float(_MOST), scale))
    if batch is None:
        return Room(scale)
    most = int(batch * scale)
    if prediction.fits:
        most = max(batch, most)
    else:
        most = min(batch - 1, most)
    return Room(scale, most)


def fits_with_expandable_segments(prediction: Prediction) -> Prediction | None:
    """The same run replayed with expandable segments, where that makes it fit."""
    trace = prediction.trace
    if trace is None or prediction.at_least or prediction.fits or "expandable" in prediction.allocator_conf:
        return None
    if prediction.peak_allocated_bytes + prediction.context_bytes > prediction.limit_bytes:
        return None
    found = predict_trace(
        trace, gpu=prediction.gpu, capacity_bytes=prediction.limit_bytes - prediction.context_bytes,
        allocator_conf=EXPANDABLE,
    )  # fmt: skip
    return found if found.fits else None
