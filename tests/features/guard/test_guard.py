"""`vramcast.guard` in front of training: the verdict, what it may change, and that it disturbs nothing."""

from __future__ import annotations

import functools
import os
import random
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import vramcast
from tests.features.guard import steps as program
from tests.jobs.tiny import JOB
from vramcast.base.units import MIB
from vramcast.errors import DoesNotFit, GuardWarning, UsageError
from vramcast.features.guard.entry import Guard
from vramcast.features.guard.job import JobSubject
from vramcast.memory import Prediction

CARD = "rtx-4090"


def closed(*args: Any, **options: Any) -> Guard:
    with vramcast.guard(*args, gpu=options.pop("gpu", CARD), quiet=True, **options) as guard:
        return guard


def by_hand(steps: int = 3) -> Prediction:
    with vramcast.virtual_gpu(CARD) as card:
        model = program.network().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        batch = {name: value.cuda() for name, value in program.batch_of(512).items()}
        for _ in range(steps):
            loss = program.step(model, optimizer, batch)
        del loss
    return card.prediction()


def test_a_step_is_predicted_as_if_it_were_run_on_the_card() -> None:
    model = program.network()
    found = closed(program.step, model, torch.optim.AdamW(model.parameters()), program.batch_of(512))
    expected = by_hand()
    assert found.prediction is not None and found.fits
    assert found.prediction.account.parts == expected.account.parts
    assert found.prediction.peak_allocated_bytes == expected.peak_allocated_bytes
    assert found.verdict.startswith("vramcast: step fits: needs 0.6")
    assert found.to_document()["prediction"]["device_bytes"] == expected.device_bytes


def test_nothing_of_the_process_is_changed() -> None:
    model = program.network()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = program.batch_of(32)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy(), dict(os.environ)

    def noisy(model: nn.Module, optimizer: Any, batch: Any) -> None:
        os.environ["LEFT_BEHIND"] = "1"
        random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
        torch.backends.cudnn.benchmark = True
        torch.set_grad_enabled(True)
        batch["x"].zero_()
        program.step(model, optimizer, batch)

    assert closed(noisy, model, optimizer, batch).fits
    after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy(), dict(os.environ)
    assert torch.equal(before[0], after[0]) and before[1] == after[1] and (before[2] == after[2]).all()
    assert before[3] == after[3] and not torch.backends.cudnn.benchmark
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters()) and not optimizer.state
    assert batch["x"].any()
    loss = program.step(model, optimizer, batch)
    assert loss.isfinite() and len(optimizer.state) == 4, "the real one trains as ever"


MODEL = program.network()
OPTIMIZER = torch.optim.AdamW(MODEL.parameters())
BATCH = program.batch_of(512)
calls = 0


def _forward() -> torch.Tensor:
    return nn.functional.cross_entropy(MODEL(BATCH["x"]), BATCH["y"])


def _step_of_globals() -> None:
    global calls
    calls += 1
    OPTIMIZER.zero_grad()
    loss = _forward()
    loss.backward()
    OPTIMIZER.step()


def test_what_a_step_reaches_by_itself_is_copied_too() -> None:
    found = closed(_step_of_globals)
    assert calls == 0 and MODEL[0].weight.grad is None and not OPTIMIZER.state  # type: ignore[index]
    assert found.prediction is not None
    assert found.prediction.peak_reserved_bytes == by_hand().peak_reserved_bytes

    model, count = program.network(), 0
    optimizer = torch.optim.AdamW(model.parameters())

    def closure() -> None:
        nonlocal count
        count += 1
        program.step(model, optimizer, BATCH)

    assert closed(closure).fits and count == 0 and not optimizer.state

    owner = program.Program()
    assert closed(owner.train_step, BATCH).fits
    assert closed(functools.partial(owner.train_step, BATCH)).fits
    assert owner.steps == 0 and not owner.optimizer.state


def test_what_can_only_be_read_once_must_be_handed_over() -> None:
    batches = iter(torch.utils.data.DataLoader(torch.zeros(4, 64)))
    with pytest.raises(UsageError, match=r"'batches'.*hand a batch over"):
        vramcast.guard(lambda: MODEL(next(batches)), gpu=CARD)


# -- when it does not fit ---------------------------------------------------------------------------------------


def needs(**arguments: Any) -> int:
    prediction = closed(program.build, arguments=arguments).prediction
    assert prediction is not None
    return prediction.device_bytes


def test_overflow_raises_warns_or_calls() -> None:
    memory = needs(batch=65536) // 2
    arguments = {"batch": 65536}
    with pytest.raises(DoesNotFit, match=r"does not fit: needs .* allowed on RTX 4090.*\n.*saved activations") as error:
        vramcast.guard(program.build, arguments=arguments, gpu=CARD, memory=memory)
    assert error.value.exit_code == 1 and error.value.result.fits is False  # type: ignore[attr-defined]
    with pytest.warns(GuardWarning, match="does not fit"):
        assert closed(program.build, arguments=arguments, memory=memory, on_overflow="warn").fits is False
    said: list[Any] = []
    found = closed(program.build, arguments=arguments, memory=memory, on_overflow=said.append)
    assert said == [found.result] and found.settings == arguments
    with pytest.raises(DoesNotFit, match="less a margin of 10%"):
        vramcast.guard(program.build, arguments=arguments, gpu=CARD, memory=needs(batch=65536) + 64 * MIB, margin=0.1)


def test_fallbacks_in_the_order_of_preference() -> None:
    whole, half = needs(batch=65536), needs(batch=32768)
    checkpointed = needs(batch=65536, checkpointing=True)
    assert half < whole and checkpointed < whole
    asked = {"batch": 65536, "accumulation": 1, "checkpointing": False}
    options: dict[str, Any] = {"arguments": asked, "memory": max(half, checkpointed) + MIB}
    first = closed(program.build, fallbacks=["micro-batch", "checkpointing"], **options)
    assert first.settings == {**asked, "batch": 32768, "accumulation": 2} and first.fits
    assert first.result.fallback is not None and first.result.fallback.name.startswith("micro-batch (batch=32768")
    assert "with micro-batch (batch=32768, accumulation=2)" in first.verdict
    other = closed(program.build, fallbacks=["checkpointing", "micro-batch"], **options)
    assert other.settings == {**asked, "checkpointing": True}
    own = closed(program.build, fallbacks=[{"batch": 16384, "accumulation": 4}], **options)
    assert own.settings["batch"] == 16384
    fits_already = closed(program.build, fallbacks=["micro-batch"], arguments=asked)
    assert fits_already.settings == asked and fits_already.result.fallback is None


def test_fallbacks_together_and_none_that_helps() -> None:
    smallest = needs(batch=16384, checkpointing=True)
    asked = {"batch": 65536, "accumulation": 1, "checkpointing": False}
    changes: list[Any] = ["checkpointing", {"batch": 16384, "accumulation": 4}]
    both = closed(program.build, arguments=asked, fallbacks=changes, memory=smallest + MIB)
    assert both.settings == {"batch": 16384, "accumulation": 4, "checkpointing": True}
    assert [one.fits for one in both.result.tried] == [False, False, True]
    with pytest.raises(DoesNotFit, match="tried checkpointing=True, batch=16384, accumulation=4: needs"):
        vramcast.guard(program.build, arguments=asked, fallbacks=changes, gpu=CARD, memory=smallest - 8 * MIB)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_overflow": "explode"}, "on_overflow: 'raise', 'warn' or a function"),
        ({"margin": 1.5}, "margin: a share"),
        ({"warn_above": 0}, "warn_above"),
        ({"steps": 0}, "steps: at least 1"),
        ({"fallbacks": ["micro-batch"], "memory": "700MiB"}, "micro-batch needs arguments called batch"),
        ({"fallbacks": ["no-such"], "memory": "700MiB"}, "'no-such': build has no argument"),
        ({"gpu": "rtx-4909"}, "vramcast gpus"),
    ],
)
def test_wrong_wishes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        vramcast.guard(program.build, **{"gpu": CARD, **options})


def test_something_that_cannot_be_guarded() -> None:
    with pytest.raises(UsageError, match="int is neither a job, a Trainer nor a function"):
        vramcast.guard(3, gpu=CARD)
    with pytest.raises(UsageError, match="a job takes no further objects"):
        vramcast.guard(JOB, MODEL, gpu=CARD)
    with pytest.raises(UsageError, match="there is no GPU here to look at: name one"):
        vramcast.guard(program.build)


def test_what_cannot_be_predicted_is_watched_all_the_same() -> None:
    def fails(model: nn.Module) -> None:
        raise ValueError("of its own")

    with pytest.warns(GuardWarning, match="fails failed: ValueError: of its own; it is watched"):
        found = closed(fails, MODEL)
    assert found.fits is None and found.prediction is None and found.to_document()["fits"] is None


def test_on_a_virtual_card_the_run_itself_is_the_prediction() -> None:
    with vramcast.virtual_gpu(CARD), vramcast.guard(program.build, arguments={"batch": 64}) as guard:
        program.build(**guard.settings)()
        assert guard.fits is None and guard.watch.steps == 1
    assert guard.watch.peak_reserved_bytes > 0


@pytest.mark.slow
def test_a_job_is_predicted_in_a_process_of_its_own() -> None:
    smaller = vramcast.predict({**JOB, "sizes": {"batch": 50_000}, "accumulation": 2}, CARD)
    job = {**JOB, "sizes": {"batch": 100_000}, "target": CARD}
    memory = smaller.device_bytes + 16 * MIB
    with vramcast.guard(job, memory=memory, fallbacks=["micro-batch"], quiet=True) as guard:
        assert guard.settings.sizes["batch"] == 50_000 and guard.settings.accumulation == 2
    assert guard.prediction is not None and guard.prediction.device_bytes == smaller.device_bytes
    assert [one.device_bytes for one in guard.result.tried] == [smaller.device_bytes]


def test_fallbacks_of_a_job() -> None:
    subject = JobSubject({**JOB, "scenarios": {"narrow": {"components.model.arguments": {"width": 64}}}})
    assert list(subject.named("checkpointing")) == [{"checkpointing": "all"}]
    assert next(subject.named("micro-batch")) == {"sizes.batch": 256, "accumulation": 2}
    assert list(subject.named("narrow")) == [{"components.model.arguments.width": 64}]
    assert subject.apply({"checkpointing": "all"}).checkpointing.scope == "all"
    with pytest.raises(UsageError, match="there is no scenario 'no-such'"):
        list(subject.named("no-such"))
