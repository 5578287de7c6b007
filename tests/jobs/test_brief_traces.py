"""Steps and passes that are repeated instead of run: the trace is that of a run in full, to the byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.tiny import JOB
from vramcast.gpus import find_gpu
from vramcast.jobs.load import load_job, with_overrides
from vramcast.jobs.schema import Job
from vramcast.jobs.validation import make_job
from vramcast.memory import predict
from vramcast.memory.repeated_steps import full_length, repeated
from vramcast.prediction import tracing
from vramcast.timing import step_time
from vramcast.trace import StepTrace

FOLDERS = Path(__file__).parent / "folders"
CARD = find_gpu("rtx-4090")
SMALL = {"components.model.config": {"num_hidden_layers": 2}, "sizes.sequence": 64, "sizes.batch": 2}
CHANGES: list[dict[str, Any]] = [
    {},
    {"precision": "fp16", "gradient_clipping": 1.0},
    {"checkpointing": "all", "precision": "bf16"},
    {"zero_grad": "after-step", "optimizer": "sgd"},
    {"zero_grad": "before-backward", "ema": True},
    {"outputs_live_until": "step", "forward_function": True},
    {"outputs_live_until": "forward"},
]


def both(job: Job, monkeypatch: pytest.MonkeyPatch) -> tuple[StepTrace, StepTrace]:
    runs: list[bool] = []
    run = tracing._run

    def noted(*args: Any, **kwargs: Any) -> Any:
        runs.append(kwargs.get("briefly", False))
        return run(*args, **kwargs)

    monkeypatch.setattr(tracing, "_run", noted)
    brief = tracing.trace_job(job, CARD).trace
    assert runs == [True], "nothing was run in full"
    monkeypatch.setattr(tracing, "repeats_itself", lambda job: False)
    return brief, tracing.trace_job(job, CARD).trace


def _rows(trace: StepTrace) -> list[tuple[Any, ...]]:
    """Numbers such as Adam's corrections and the step's own differ from step to step, and cost the same."""
    calls = trace.calls
    assert calls is not None
    arguments = [re.sub(r"[-.e0-9]*\.[-e0-9]+|\b[23]\b", "#", text) for text in calls.arguments]
    columns = zip(calls.call, calls.module, calls.phase, calls.flags, calls.event, strict=True)
    return [
        (calls.ops[call], arguments[call], trace.modules[module], trace.phases[phase], *rest)
        for call, module, phase, *rest in columns
    ]


def check(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    brief, full = both(job, monkeypatch)
    for column in ("event_kind", "event_arg", "requested_bytes", "stream", "kind", "step"):
        assert getattr(brief, column) == getattr(full, column), column
    assert [brief.ops[i] for i in brief.op] == [full.ops[i] for i in full.op]
    assert [brief.modules[i] for i in brief.module] == [full.modules[i] for i in full.module]
    assert brief.labels == full.labels and brief.host == full.host
    assert brief.calls is not None and full.calls is not None
    for calls in (brief.calls, full.calls):
        assert len(calls) > 10
    assert _rows(brief) == _rows(full)
    one, other = predict(brief), predict(full)
    assert one.device_bytes == other.device_bytes and one.account == other.account
    times = [step_time(trace, CARD) for trace in (brief, full)]
    assert times[0] is not None and times[1] is not None
    assert times[0].seconds == pytest.approx(times[1].seconds, rel=1e-9)


@pytest.mark.parametrize("accumulation", [1, 2, 3, 7])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_mixer(changes: dict[str, Any], accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(with_overrides(make_job(JOB, "job"), {**changes, "accumulation": accumulation}), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"checkpointing": "all", "accumulation": 3}], ids=str)
@pytest.mark.parametrize("folder", ["llama-2-7b", "bert-base"])
def test_models(folder: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    check(with_overrides(load_job(str(FOLDERS / folder)).job, {**SMALL, **changes}), monkeypatch)


@pytest.mark.parametrize(
    "change",
    [{"task": "inference"}, {"gpus": 2}, {"offload": {"activations": True}}, {"evaluation": {"when": "between"}}],
    ids=str,
)
def test_what_is_run_in_full(change: dict[str, Any]) -> None:
    assert not tracing.repeats_itself(make_job({**JOB, **change}, "job"))


def test_paged_state(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bitsandbytes")
    job = {**JOB, "optimizer": "paged-adamw8bit", "accumulation": 3}
    check(make_job(job, "job"), monkeypatch)


def test_data_that_decides_is_looked_at_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adafactor reads numbers from the card: what it does then is not known from the second step."""
    runs: list[int] = []
    run = tracing._run
    monkeypatch.setattr(tracing, "_run", lambda *args, **kwargs: runs.append(args[2]) or run(*args, **kwargs))
    tracing.trace_job(make_job({**JOB, "optimizer": "adafactor"}, "job"), CARD)
    assert runs == [2, 3]


def test_a_round_that_leaves_more_than_it_found_is_not_repeated() -> None:
    job = make_job(JOB, "job")
    trace = tracing._run(job, CARD, 1, None, 2**60, lambda text: None)[0].trace()
    assert repeated(trace, 0, trace.n_events) is None, "weights and optimizer state are made only once"
    assert full_length(trace, 1) is None
