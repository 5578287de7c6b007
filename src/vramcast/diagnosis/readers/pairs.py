"""Keys and values of a line as a sample; every line reader ends here."""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.diagnosis import sample as q
from vramcast.diagnosis.clocks import clock_of
from vramcast.diagnosis.sample import Sample
from vramcast.diagnosis.vocabulary import STEP_KEYS, is_evaluation, read, whole

_ONE_GPU = ("device", "per_gpu", "per gpu", "/gpu")


def sample_of(pairs: Iterable[tuple[str, float, str]], line: str = "") -> Sample | None:
    """(key, value, unit) → what is known of them; None when nothing is."""
    found = Sample()
    evaluation = False
    for key, value, unit in pairs:
        lowered = key.strip().lower().removeprefix("train/").removeprefix("trainer/")
        if lowered in STEP_KEYS:
            found.step = whole(value) if not unit else found.step
            continue
        known = read(key, value, unit)
        if known is None:
            evaluation = evaluation or is_evaluation(key)
            continue
        quantity, figure = known
        if quantity == q.EVALUATION_SECONDS:
            evaluation = True
        elif quantity in (q.SAMPLES_PER_SECOND, q.TOKENS_PER_SECOND) and any(word in lowered for word in _ONE_GPU):
            found.throughput_of = "one"
        found.values[quantity] = figure
    if evaluation:
        # The rates and steps of an evaluation are not those of training.
        kept = found.values.get(q.EVALUATION_SECONDS)
        return None if kept is None else Sample(values={q.EVALUATION_SECONDS: kept})
    if found.step is None and not found.values:
        return None
    add_clock(found, line)
    return found


def add_clock(found: Sample, line: str) -> None:
    clock = clock_of(line) if found.step is not None else None
    if clock is not None:
        found.clock_seconds, found.clock_resolution = clock
