"""A trace continued must be the trace that more steps would have given."""

from __future__ import annotations

import pytest

from tests.samples import build, transformer
from vramcast.base.units import MIB
from vramcast.memory import predict, replay
from vramcast.memory.lengthening import SETTLED_STEPS, lengthened
from vramcast.trace import StepTrace, TraceBuilder


def loop(steps: int, *, optimizers: int = 1, varying: bool = False) -> StepTrace:
    """A loop whose outputs live until the next round replaces them, with one or more optimizers."""
    b = TraceBuilder()
    op, module, phase = b.intern_op("op"), b.intern_module(""), b.intern_phase("forward")

    def alloc(size: int) -> int:
        return b.alloc(size, op, module, phase)

    b.free(alloc(5 * MIB))
    kept: list[int] = [alloc(64 * MIB)]
    outputs: list[int] = []
    for step in range(steps):
        for part in range(optimizers):
            fresh = [alloc((7 + part) * MIB), alloc((30 + (step if varying else 0)) * MIB)]
            scratch = alloc(11 * MIB)
            if part == optimizers - 1:
                for old in outputs:
                    b.free(old)
                outputs = fresh
            else:
                for one in fresh:
                    b.free(one)
            b.free(scratch)
            if step == 0:
                kept.append(alloc(3 * MIB))
            b.mark("step")
    for block in (*outputs, *kept):
        b.free(block)
    return build(b)


def _same(a: StepTrace, b: StepTrace) -> bool:
    columns = ("event_kind", "event_arg", "requested_bytes", "op", "phase", "stream")
    return all(getattr(a, name) == getattr(b, name) for name in columns) and a.steps == b.steps


@pytest.mark.parametrize("optimizers", [1, 2, 3])
def test_what_more_steps_would_have_given(optimizers: int) -> None:
    assert _same(lengthened(loop(3, optimizers=optimizers), 6), loop(6, optimizers=optimizers))


def test_a_function_that_frees_its_gradients_after_the_step() -> None:
    assert _same(lengthened(transformer(steps=3)), transformer(steps=SETTLED_STEPS))
    assert (
        predict(transformer(steps=3)).peak_reserved_bytes == replay(transformer(steps=6)).peak_reserved.reserved_bytes
    )


def test_steps_that_differ_are_left_alone() -> None:
    for trace in (loop(3, varying=True), loop(2), loop(1), transformer(steps=9)):
        assert lengthened(trace) is trace


def test_a_loss_that_is_printed_now_and_then() -> None:
    b = TraceBuilder()
    op, module, phase = b.intern_op("op"), b.intern_module(""), b.intern_phase("forward")
    for step in range(3):
        block = b.alloc(5 * MIB, op, module, phase)
        if step % 2 == 0:
            b.mark("synchronize")
        b.free(block)
        b.mark("step")
    assert lengthened(build(b)).steps == SETTLED_STEPS


def test_the_prediction_says_how_many_steps_it_is_of() -> None:
    prediction = predict(loop(3))
    assert (prediction.steps, prediction.replayed_steps) == (3, SETTLED_STEPS)
    assert predict(loop(3, varying=True)).replayed_steps == 3
