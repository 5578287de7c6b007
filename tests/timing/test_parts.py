"""Host work by kind, waits, gradient sync, and one iteration cut out of what was noted."""

from __future__ import annotations

import pytest

from vramcast.gpus import find_gpu
from vramcast.timing.costs.model import CostModel
from vramcast.timing.host import factor_between, features, is_on_host, next_optimizers, undisturbed_host
from vramcast.timing.interval import interval
from vramcast.timing.iteration import last_iteration, steps_in, stretches
from vramcast.timing.parallel import Sync, all_reduce_seconds, exposed_seconds
from vramcast.timing.throughput import throughput
from vramcast.timing.waits import waits
from vramcast.trace.calls import (
    AUTOCAST,
    BACKWARD,
    BACKWARD_END,
    ENGINE,
    GRAD,
    ITERATION,
    ITERATION_END,
    OPTIMIZER,
    OPTIMIZER_END,
    PYTHON,
    RECOMPUTED,
    CallLog,
    OpCalls,
)


def noted(*ops: str) -> OpCalls:
    log = CallLog()
    for name in ops:
        op, _, arguments = name.partition("|")
        log.mark(op, arguments, 0, 0, 0, 0)
    return log.build()


@pytest.mark.parametrize(
    ("op", "arguments", "expected"),
    [
        ("aten._local_scalar_dense.default", "f32()", True),
        ("aten._local_scalar_dense.default", "cpu:f32()", False),
        ("aten._to_copy.default", "cpu:f32(8,3), dtype=float32, device=cuda:0", True),
        ("aten._to_copy.default", "cpu:f32(8,3), dtype=float32, device=cuda:0, non_blocking=True", False),
        ("aten._to_copy.default", "f32(8,3), dtype=bfloat16", False),
        ("aten._to_copy.default", "f32(8,3), device=cpu", True),
        ("aten.nonzero.default", "b8(64)", True),
        ("aten.index.Tensor", "f32(64,8), [b8(64)]", True),
        ("aten.index.Tensor", "f32(64,8), [i64(64)]", False),
        ("aten.index.Tensor", "f32(64,8), [cpu:i64(64)]", True),
        ("aten.index.Tensor", "cpu:f32(64,8), [cpu:b8(64)]", False),
        ("aten.index_put_.default", "f32(96), [b8(96)], cpu:f32()", False),
        ("aten.index_put_.default", "f32(96), [b8(96)], f32()", True),
        ("aten.index_put_.default", "f32(96), [i64(4)], cpu:f32()", True),
        ("aten.index_put_.default", "f32(96), [i64(4)], f32(4)", False),
        ("aten.mm.default", "f32(8,8), f32(8,8)", False),
        ("synchronize", "", True),
        ("aten.mm.default", "f32(8,8)sparse_coo, f32(8,4)", True),
        ("aten.mm.default", "f32(8,8), f32(8,4)", False),
    ],
)
def test_what_makes_the_host_wait(op: str, arguments: str, expected: bool) -> None:
    assert waits(op, arguments) is expected


def test_kinds_of_host_work() -> None:
    assert features("aten.mm.default", "f32(8,8), f32(8,8)", GRAD, 1) == (("forward op", 1.0),)
    assert features("aten.view.default", "f32(8,8), [64]", 0, 0) == (("unrecorded view", 1.0),)
    assert features("aten.mm.default", "f32(8,8)", ENGINE, 1) == (("backward op", 1.0),)
    assert features("aten.add.Tensor", "f32(8,8), f32(8,8)", ENGINE, 1) == (("accumulated gradient", 1.0),)
    assert features("aten._local_scalar_dense.default", "f32()", 0, 1) == (("read", 1.0),)
    read_back = features("aten._to_copy.default", "f32(1024,1024), device=cpu", 0, 1)
    assert read_back == (("unrecorded op", 1.0), ("new page", 1024.0))
    assert features("aten.index.Tensor", "f32(8,8), [cpu:i64(4), cpu:i64(4)]", 0, 1)[1] == ("unrecorded op", 2.0)
    again = features("aten.mm.default", "bf16(8,8)", ENGINE | RECOMPUTED | GRAD | AUTOCAST, 1)
    assert again == (("forward op", 1.0), ("autocast", 1.0))
    assert features("aten._foreach_add_.List", "[f32(2), f32(3)], [f32(2), f32(3)]", 0, 1)[1] == (
        "tensor of a list",
        4.0,
    )
    assert features(PYTHON, "40", 0, 0) == (("python call", 40.0),)
    assert features("optimizer", "148 0", 0, 0) == (("optimizer", 1.0), ("parameter", 148.0))
    assert is_on_host("cpu:f32(), 1") and not is_on_host("cpu:f32(4), device=cuda:0")
    assert is_on_host("[3], device=cpu") and not is_on_host("[3], device=cuda:0")


def test_optimizers_that_follow_one_another_take_less() -> None:
    one = (f"{OPTIMIZER}|1 0", "aten._foreach_add_.List|[f32(2)], [f32(2)]", OPTIMIZER_END)
    far = ["aten.mm.default|f32(8,8)"] * 200
    calls = noted(*one, "aten.mm.default|f32(8,8)", *one, *far, *one)
    is_next = next_optimizers(calls, range(len(calls)))
    assert [row for row, found in enumerate(is_next) if found] == [4, 5, 6]
    assert features("optimizer", "1 0", 0, 0, True)[0] == ("next optimizer", 1.0)
    seconds = undisturbed_host().seconds
    assert seconds["next optimizer"] < seconds["optimizer"] and seconds["next list op"] < seconds["list op"]


def test_every_kind_has_a_figure_and_a_slower_host_is_slower() -> None:
    host = undisturbed_host()
    kinds = {
        name for flags in (0, GRAD, ENGINE) for k in (0, 2) for name, _ in features("aten.x.y", "f32(1)", flags, k)
    }
    assert kinds <= set(host.seconds)
    args = ("aten.mm.default", "f32(8,8)", GRAD, 1)
    assert host.scaled(2.0).issue_seconds(*args) == pytest.approx(2 * host.issue_seconds(*args))
    assert factor_between({"a": 2e-6, "b": 8e-6, "c": 1.0}, {"a": 1e-6, "b": 4e-6}) == pytest.approx(2.0)


def test_the_last_iteration_is_the_one_that_was_marked() -> None:
    calls = noted("aten.a.b", ITERATION, "aten.c.d", ITERATION_END, "aten.e.f")
    assert list(last_iteration(calls)) == [1, 2, 3]


def test_without_marks_a_step_lies_between_two_ends_of_the_rarest_optimizer() -> None:
    critic, generator = f"{OPTIMIZER_END}|8 0", f"{OPTIMIZER_END}|9 1"
    calls = noted("aten.a.b", critic, critic, generator, "aten.a.b", critic, critic, generator)
    assert list(last_iteration(calls)) == [4, 5, 6, 7]
    assert not last_iteration(noted("aten.a.b"))


def test_where_optimizers_take_turns_a_step_is_its_share_of_their_round() -> None:
    actor, critic = f"{OPTIMIZER_END}|8 0", f"{OPTIMIZER_END}|9 1"
    calls = noted(actor, critic, critic, "aten.a.b", actor, actor, critic, critic, "aten.a.b", actor)
    rows = last_iteration(calls)
    assert list(rows) == [5, 6, 7, 8, 9], "two steps of each, as often as they come"
    assert steps_in(calls, rows) == 2
    twice = noted(critic, critic, actor, critic, critic, actor)
    assert steps_in(twice, last_iteration(twice)) == 1, "as many as the rarer one makes"
    alone = noted(ITERATION, critic, critic, ITERATION_END)
    assert steps_in(alone, last_iteration(alone)) == 1


def test_phases_are_cut_as_a_measurement_cuts_them() -> None:
    calls = noted(
        ITERATION, "aten.f.x", BACKWARD, "aten.b.x", BACKWARD_END, "aten.clip.x", OPTIMIZER, "aten.o.x", OPTIMIZER_END,
        "aten.ema.x", ITERATION_END,
    )  # fmt: skip
    found = [(part.phase, part.end - part.first) for part in stretches(calls, last_iteration(calls))]
    assert found == [("forward", 2), ("backward", 3), ("optimizer", 1), ("optimizer", 3), ("optimizer", 2)]


def test_an_optimizer_inside_the_backward_pass_leaves_the_rest_of_it_backward() -> None:
    calls = noted(
        ITERATION, "aten.f.x", BACKWARD, "aten.b.x", OPTIMIZER, "aten.o.x", OPTIMIZER_END, "aten.b.x", BACKWARD_END,
        ITERATION_END,
    )  # fmt: skip
    found = [(part.phase, part.end - part.first) for part in stretches(calls, last_iteration(calls))]
    assert found == [("forward", 2), ("backward", 2), ("optimizer", 3), ("backward", 2), ("optimizer", 1)]


def test_gradient_sync_hides_behind_the_backward_pass() -> None:
    gpu = find_gpu("h200")
    size = 400 << 20
    whole = all_reduce_seconds(size, 8, gpu)
    sync = Sync(cards=8, gradient_bytes=size)
    hidden = exposed_seconds(sync, gpu, [], 0.0, 10.0)
    laid_open = exposed_seconds(sync, gpu, [], 0.0, whole / 100)
    assert 0 < hidden < 0.1 * whole  # only the last bucket
    assert 0.9 * whole < laid_open < 1.5 * whole
    assert all_reduce_seconds(size, 1, gpu) == 0


def test_durations_follow_from_the_step() -> None:
    found = throughput(0.5, samples_per_step=8, tokens_per_sample=100, steps_per_epoch=10, epochs=3)
    assert (found.samples_per_second, found.tokens_per_second) == (16, 1600)
    assert (found.epoch_seconds, found.total_seconds) == (5, 15)
    assert throughput(0.5, samples_per_step=8).epoch_seconds is None


def test_a_card_that_was_not_measured_is_less_sure() -> None:
    sure, unsure = interval(1.0, calibrated=True), interval(1.0, calibrated=False)
    assert unsure[0] <= sure[0] < 1 < sure[1] < unsure[1]


def test_products_on_a_card_with_a_published_rate() -> None:
    """A B200's large products reach what others measured, and those of eight bits twice that."""
    model = CostModel(find_gpu("b200"))
    half = model.cost("aten.mm.default", "bf16(8192,8192), bf16(8192,8192)")
    assert half.flops / half.device_seconds == pytest.approx(1120e12, rel=0.05)
    eight = model.cost("aten._scaled_mm.default", "float8_e4m3fn(8192,8192), float8_e4m3fn(8192,8192)")
    assert eight.flops == half.flops
    assert eight.device_seconds == pytest.approx(half.device_seconds / 2, rel=0.05)
