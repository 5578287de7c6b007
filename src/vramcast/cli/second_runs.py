"""A script that is run a second time for one answer: what it needs in full, or which values its sizes follow from."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from vramcast import overlay
from vramcast.base.errors import CannotPredict
from vramcast.base.host_memory import available_bytes
from vramcast.cli.ranks import Child

if TYPE_CHECKING:
    from vramcast.memory import Prediction
    from vramcast.trace import StepTrace

SecondRun = Callable[[], "StepTrace | None"]

VALUES_CPU_SECONDS = 100
"""Of the processor, for computing values unasked: odenet_mnist.py of torchdiffeq takes 60, of adaptive-span 33."""
_MOST_FLOPS = 3e12
"""What a processor computes in that time at 30 GFLOP/s a core, as it did for adaptive-span."""
_MOST_OF_MEMORY = 0.5
"""Of what is available on this computer: tensors that are computed lie there as they would on the card."""


@contextlib.contextmanager
def second_run(run: Callable[[int], Prediction] | None, *, cpu_seconds: int | None = None) -> Iterator[SecondRun]:
    """What is given runs `run(0)` in a process that is forked now, when nothing has been run yet, and kept waiting. It
    gives None where that does not come about, or takes more than `cpu_seconds`. `run`: None where nothing can be
    forked."""
    if run is None:
        yield lambda: None
        return
    child = Child(0, run, waits=True, cpu_seconds=cpu_seconds)

    def trace() -> StepTrace | None:
        if not overlay.put_back():
            return None
        child.go()
        try:
            return child.finish().trace()
        except CannotPredict:
            return None

    try:
        yield trace
    finally:
        child.dismiss()


def in_full(refused: Prediction, trace_again: SecondRun, limit: int | None) -> Prediction:
    """What a run needs that was refused memory, on a card that does not refuse it, and where this one would."""
    whole = trace_again()
    if whole is None or whole.ends_refused:
        return refused
    from vramcast.memory import predict
    from vramcast.trace import Note

    total = refused.gpu.total_memory_bytes
    cards = tuple(
        dataclasses.replace(card, capacity_bytes=total - card.context_bytes if limit is None else limit)
        for card in whole.cards
    )
    room = total - whole.context_bytes
    found = predict(whole.changed(capacity_bytes=room if limit is None else limit, cards=cards))
    if found.fits or refused.trace is None:
        return refused
    ended = [note for note in refused.notes if note.topic == "out of memory"]
    again = Note("run twice", "it was refused memory; the figures are of a second run on a card without a limit")
    return dataclasses.replace(found, notes=(*ended, *found.notes, again))


def wants_values(prediction: Prediction) -> bool:
    """Whether sizes follow from values that were assumed, and computing them is a matter of a minute or two here."""
    from vramcast.trace import UNKNOWN_SIZE

    if prediction.at_least or all(note.topic != UNKNOWN_SIZE for note in prediction.notes):
        return False
    available = available_bytes()
    has_room = available is None or prediction.peak_reserved_bytes <= available * _MOST_OF_MEMORY
    time = prediction.time
    return has_room and (time is None or time.flops * prediction.steps <= _MOST_FLOPS)


def with_values(assumed: Prediction, trace_again: SecondRun) -> Prediction:
    """The prediction with the values computed, where that came about in time."""
    trace = trace_again()
    if trace is None or trace.ends_refused:
        return assumed
    from vramcast.memory import predict, with_time
    from vramcast.trace import COMPUTED_VALUES, UNKNOWN_SIZE, Note

    places = list(dict.fromkeys(note.where for note in assumed.notes if note.topic == UNKNOWN_SIZE))
    found = with_time(predict(trace))
    again = Note(
        COMPUTED_VALUES,
        "sizes follow from a value that is read here, so a second run computed all values on the CPU "
        "(--no-compute-values assumes them); a card rounds otherwise and draws other random numbers",
        places[0],
    )
    others = [note for note in found.notes if note.topic != COMPUTED_VALUES]
    time = found.time and found.time.by_values()
    return dataclasses.replace(found, notes=(again, *others), time=time)
