"""Keys and values of a line as a sample; every line reader ends here."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.clocks import clock_of
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import STEP_KEYS, is_evaluation, read, whole

_ONE_GPU = ("device", "per_gpu", "per gpu", "/gpu")


@lru_cache(maxsize=4096)
def _kind(key: str) -> tuple[bool, bool, bool]:
    """Whether it counts steps, belongs to an evaluation, or speaks of one GPU."""
    lowered = key.strip().lower()
    counts = lowered.removeprefix("train/").removeprefix("trainer/") in STEP_KEYS
    return counts, is_evaluation(key), any(word in lowered for word in _ONE_GPU)


def sample_of(pairs: Iterable[tuple[str, float, str]], line: str = "") -> Sample | None:
    """(key, value, unit) → what is known of them; None when nothing is."""
    sample = Sample()
    values = sample.values
    of_evaluation = False
    for key, value, unit in pairs:
        counts, evaluation, one_gpu = _kind(key)
        if counts:
            sample.step = whole(value) if not unit else sample.step
            continue
        of_evaluation = of_evaluation or evaluation
        known = read(key, value, unit)
        if known is None:
            continue
        quantity, figure = known
        values[quantity] = figure
        if one_gpu and quantity in (q.SAMPLES_PER_SECOND, q.TOKENS_PER_SECOND):
            sample.throughput_of = "one"
    if of_evaluation:
        # The rates and steps of an evaluation are not those of training.
        kept = values.get(q.EVALUATION_SECONDS)
        return None if kept is None else Sample(values={q.EVALUATION_SECONDS: kept})
    if sample.step is None and not values:
        return None
    add_clock(sample, line)
    return sample


def add_clock(sample: Sample, line: str) -> None:
    clock = clock_of(line) if sample.step is not None else None
    if clock is not None:
        sample.clock_seconds, sample.clock_resolution = clock
