"""Every format, as the libraries themselves write it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import vramcast
from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.collect import Collected
from vramcast.features.diagnose.logs.readers import line_readers
from vramcast.features.diagnose.logs.reading import read_log

LOGS = Path(__file__).with_name("logs")


def parts(name: str | Path) -> dict[str | None, float | None]:
    return {part.phase: part.seconds for part in vramcast.diagnose(LOGS / name).diagnosis.parts}


def log(tmp_path: Path, text: str | bytes, name: str = "train.log") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_trainer_with_bars() -> None:
    """transformers 5: carriage returns, a bar for each evaluation between, quoted values."""
    found = vramcast.diagnose(LOGS / "trainer_bars.log").diagnosis
    assert found.setup.batch == 8 and found.setup.gpus == 1
    assert (found.last_step, found.total_steps) == (100, 100)
    assert found.step is not None and found.step.seconds == pytest.approx(1 / 13.59, rel=0.01)
    assert any(one.kind == "evaluation" for one in found.irregular)


def test_trainer_without_bars() -> None:
    found = vramcast.diagnose(LOGS / "trainer_plain.log").diagnosis
    assert found.step is not None and found.step.seconds == pytest.approx(8 / 68.6)
    assert found.step.how.startswith("of the whole run")


def test_trainer_state() -> None:
    found = vramcast.diagnose(LOGS / "trainer_state.json").diagnosis
    assert (found.last_step, found.total_steps, found.setup.batch) == (100, 100, 8)
    assert found.step is None and "neither their time nor throughput" in found.bottleneck


def test_lightning_profiler_takes_the_closure_out_of_the_optimizer() -> None:
    found = parts("lightning_profile.log")
    assert found[q.FORWARD] == pytest.approx(0.010081)
    assert found[q.BACKWARD] == pytest.approx(0.020039)
    assert found[q.OPTIMIZER] == pytest.approx(0.1023 - 0.010081 - 0.020039)


def test_lightning_csv() -> None:
    found = vramcast.diagnose(LOGS / "lightning_metrics.csv").diagnosis
    assert found.step is not None and found.step.seconds == pytest.approx(1 / 34.36, rel=0.001)
    assert found.setup.throughput_of == "one"


def test_torchtitan_with_its_colours() -> None:
    found = vramcast.diagnose(LOGS / "torchtitan.log").diagnosis
    assert found.step is not None and found.step.seconds == pytest.approx(2.0, rel=0.01)
    assert (found.setup.batch, found.setup.gpus, found.setup.sequence, found.total_steps) == (8, 8, 2048, 1000)
    (by_tokens,) = [one for one in found.other_estimates if "tokens/s of one GPU" in one.how]
    assert by_tokens.seconds == pytest.approx(2.0, rel=0.01)
    assert found.mfu == pytest.approx(0.3796) and found.memory_bytes == int(41.25 * 2**30)


def test_profiler_trace_of_a_real_gpu_splits_the_step_as_cuda_events_do() -> None:
    """lab/measuring/record_profile.py on an H200: the same steps without the profiler, by events.

    The profiler slows the host, so that the card idles more; the kernels take as long as ever. Events count the idle
    time inside a phase too: in forward that is a third of a millisecond, the copy of the batch and the first launches.
    """
    found = {
        part.name: part.seconds or 0.0 for part in vramcast.diagnose(LOGS / "profiler_h200.json.gz").diagnosis.parts
    }
    events = json.loads((LOGS / "profiler_h200_phases.json").read_text())["phase_seconds"]
    assert sum(found[phase] for phase in events) == pytest.approx(sum(events.values()), rel=0.1)
    for phase in ("backward", "optimizer"):
        assert found[phase] == pytest.approx(events[phase], rel=0.1)
    assert events["forward"] - 0.35e-3 < found["forward"] < events["forward"]
    for phase in events:
        assert found[phase] / sum(found[one] for one in events) == pytest.approx(
            events[phase] / sum(events.values()), abs=0.05
        )


def test_profiler_trace_of_the_cpu() -> None:
    found = parts("profiler_cpu.json.gz")
    assert set(found) >= {q.DATA, q.FORWARD, q.BACKWARD, q.OPTIMIZER}
    assert vramcast.diagnose(LOGS / "profiler_cpu.json.gz").step_seconds == pytest.approx(
        sum(filter(None, found.values())), rel=0.02
    )


def kernel_trace() -> dict[str, object]:
    """Two steps of 100 ms: kernels launched from forward, autograd and the optimizer, a sync half hidden, idle time."""
    events: list[dict[str, object]] = []

    def add(cat: str, name: str, ts: float, dur: float, correlation: int | None = None) -> None:
        args = {} if correlation is None else {"correlation": correlation}
        events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 0, "args": args})

    for step in range(2):
        at, c = step * 100_000.0, step * 10
        add("user_annotation", f"ProfilerStep#{step}", at, 100_000)
        add("user_annotation", "enumerate(DataLoader)#_Iter.__next__", at, 5_000)
        add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at + 12_000, 3_000)
        add("user_annotation", "Optimizer.step#AdamW.step", at + 16_000, 2_000)
        for number, (launch, start, length) in enumerate(
            [(10_000, 10_000, 20_000), (13_000, 30_000, 40_000), (17_000, 80_000, 10_000)]
        ):
            add("kernel", f"kernel{number}", at + start, length, c + number)
            add("cuda_runtime", "cudaLaunchKernel", at + launch, 5, c + number)
        add("kernel", "ncclDevKernel_AllReduce", at + 60_000, 20_000, c + 9)
    return {"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}


@pytest.mark.parametrize("packed", [False, True])
def test_profiler_trace_of_a_gpu(tmp_path: Path, packed: bool) -> None:
    data = json.dumps(kernel_trace()).encode()
    path = log(tmp_path, gzip.compress(data) if packed else data, "trace.json")
    found = vramcast.diagnose(path).diagnosis
    by_name = {part.name: part.seconds for part in found.parts}
    assert by_name == {
        q.DATA: pytest.approx(0.005), q.FORWARD: pytest.approx(0.02), q.BACKWARD: pytest.approx(0.04),
        q.SYNC: pytest.approx(0.01), q.OPTIMIZER: pytest.approx(0.01), "GPU idle": pytest.approx(0.015),
    }  # fmt: skip
    assert found.step is not None and sum(filter(None, by_name.values())) == pytest.approx(found.step.seconds)


@pytest.mark.parametrize(
    ("line", "step", "values"),
    [
        ("step=12 loss=2.1 step_time=350ms data_time=0.4ms", 12, {q.STEP_SECONDS: 0.35, q.phase_key(q.DATA): 4e-4}),
        ("iter 100: loss 3.2, time 135.2ms, mfu 35.1%", 100, {q.TIME: 0.1352, q.MFU: 0.351}),
        ("eta: 1:02:03  iter: 19  total_loss: 0.5  time: 0.35  data_time: 0.01  max_mem: 2000M", 19,
         {q.TIME: 0.35, q.phase_key(q.DATA): 0.01, q.MEMORY_BYTES: 2000 * 2**20}),
        (" iteration      100/  500 | consumed samples: 25600 | elapsed time per iteration (ms): 512.5 | "
         "global batch size: 256 | lm loss: 8.9E+00 |", 100, {q.STEP_SECONDS: 0.5125, q.GLOBAL_BATCH: 256}),
        ('{"step": 7, "perf": {"step_time": 0.5, "fwd_ms": 120}}', 7,
         {q.STEP_SECONDS: 0.5, q.phase_key(q.FORWARD): 0.12}),
        (" 45%|####5     | 450/1000 [01:23<01:41,  5.00it/s, loss=0.1]", 450, {q.STEP_SECONDS: 0.2}),
        (" 45%|####5     | 450/1000 [01:23<01:41,  2.50s/it, data_time=0.01]", 450,
         {q.STEP_SECONDS: 2.5, q.phase_key(q.DATA): 0.01}),
        ("Epoch 0/1 ━━━━━━━━━━ 30/100 0:00:04 • 0:00:09 20.00it/s v_num: 1.000", 30, {q.STEP_SECONDS: 0.05}),
        ("step 3 | 0.5 samples/s | forward: 1.2s | backward: 2.4s | allreduce=100ms", 3,
         {q.SAMPLES_PER_SECOND: 0.5, q.phase_key(q.FORWARD): 1.2, q.phase_key(q.BACKWARD): 2.4,
          q.phase_key(q.SYNC): 0.1}),
        ("{'loss': '1.2', 'eval_runtime': '0.8', 'eval_samples_per_second': '495'}", None, {q.EVALUATION_SECONDS: 0.8}),
    ],
)  # fmt: skip
def test_lines(line: str, step: int | None, values: dict[str, float]) -> None:
    readers = list(line_readers())
    sample = next(found for reader in readers if (found := reader.parse(line.strip())) is not None)
    assert sample.step == step
    assert sample.values == pytest.approx(values)


@pytest.mark.parametrize(
    "line", ["loss=0.1 lr=3e-4", "val_loss: 0.3 val_time_left: soon", "epoch 3 done", "step done in no time"]
)
def test_lines_that_say_nothing(line: str) -> None:
    assert all(reader.parse(line) is None for reader in line_readers())


def test_a_key_called_time_that_only_grows_is_no_step_time(tmp_path: Path) -> None:
    grows = "".join(f'{{"step": {i}, "time": {i * 2.0}}}\n' for i in range(1, 40))
    assert vramcast.diagnose(log(tmp_path, grows)).step_seconds is None
    stays = "".join(f'{{"step": {i}, "time": {2 + i % 3 / 10}}}\n' for i in range(1, 40))
    assert vramcast.diagnose(log(tmp_path, stays)).step_seconds == pytest.approx(2.1)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "gb18030", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    """A stage named in Chinese (forward, in all) where the encoding can say it."""
    word = "forward" if encoding == "latin-1" else "\u524d\u5411\u4f20\u64ad"
    text = f"{word} : 1805.28ms (50.0%)\nstep 3/9 | 0.5 samples/s | data_time=0.1ms\ncaf\u00e9\n" * 3
    found: Collected = read_log(log(tmp_path, text.encode(encoding)))
    assert found.main_track is not None and found.main_track.last_step == 3
    assert found.stages[word].seconds.median == pytest.approx(1.80528)


def test_the_time_of_the_lines(tmp_path: Path) -> None:
    """Whole seconds, and no throughput: 3 s a step."""
    lines = [f"2025-01-01 10:{i * 3 // 60:02d}:{i * 3 % 60:02d} INFO step={i} loss=1.0" for i in range(200)]
    found = vramcast.diagnose(log(tmp_path, "\n".join(lines))).diagnosis
    assert found.step is not None and found.step.seconds == pytest.approx(3.0)
    assert found.step.how == "from the times of the lines"
