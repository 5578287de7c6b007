"""Changes that the user allows, tried in their order until one fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.features.guard.result import Tried
from vramcast.memory import Prediction

Changes = Mapping[str, Any]
Fallback = str | Changes
Predict = Callable[[Changes], Prediction]
Named = Callable[[str], Iterator[Changes]]
"""The changes that a name stands for here, mildest first: "micro-batch" halves the batch again and again."""


def first_that_fits(
    fallbacks: Sequence[Fallback], predict: Predict, named: Named
) -> tuple[list[Tried], Prediction | None]:
    """Each alone in the order given, then the first two together, the first three, and so on.

    Of a name that stands for several changes the first that fits is taken, or the last. The last entry is the one that
    fits when a prediction is returned with it.
    """
    tried: list[Tried] = []
    alone = [_Tries(fallback, predict, named) for fallback in fallbacks]
    for tries in alone:
        prediction = tries.over({}, tried)
        if prediction is not None:
            return tried, prediction
    together: Changes = alone[0].strongest if alone else {}
    for tries in alone[1:]:
        prediction = tries.over(together, tried)
        if prediction is not None:
            return tried, prediction
        together = {**together, **tries.strongest}
    return tried, None


class _Tries:
    def __init__(self, fallback: Fallback, predict: Predict, named: Named) -> None:
        if isinstance(fallback, str):
            self._all = list(named(fallback))
            self._name = fallback
        else:
            self._all = [fallback]
            self._name = ", ".join(f"{key}={value}" for key, value in fallback.items())
        self._predict = predict

    @property
    def strongest(self) -> Changes:
        return self._all[-1] if self._all else {}

    def over(self, before: Changes, tried: list[Tried]) -> Prediction | None:
        for changes in self._all:
            both = {**before, **changes}
            values = ", ".join(f"{key}={value}" for key, value in both.items())
            name = values if before or self._name == values else f"{self._name} ({values})"
            try:
                prediction = self._predict(both)
            except CannotPredict as error:
                tried.append(Tried(name, both, False, None, str(error)))
                continue
            tried.append(Tried(name, both, prediction.fits, prediction.device_bytes))
            if prediction.fits:
                return prediction
        return None


def smaller_batches(batch_key: str, batch: int, accumulation_key: str, accumulation: int) -> Iterator[Changes]:
    """Micro-batches that divide the batch, largest first, with as much more accumulation: the same effective batch."""
    for parts in range(2, batch + 1):
        if batch % parts == 0:
            yield {batch_key: batch // parts, accumulation_key: accumulation * parts}


def batch_keys(arguments: Changes) -> tuple[str, str]:
    """Which arguments of a function are the batch and the accumulation."""
    batch = next((key for key in ("batch", "batch_size", "micro_batch", "micro_batch_size") if key in arguments), None)
    names = ("accumulation", "accumulation_steps", "gradient_accumulation_steps", "accumulate_grad_batches")
    accumulation = next((key for key in names if key in arguments), None)
    if batch is None or accumulation is None:
        raise UsageError(
            "fallbacks: micro-batch needs arguments called batch (or batch_size) and accumulation (or "
            "gradient_accumulation_steps); or name the changes, e.g. {'batch': 4, 'accumulation': 2}"
        )
    return batch, accumulation
