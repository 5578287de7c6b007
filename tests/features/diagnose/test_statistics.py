"""Warm-up, slow steps, trends; large logs; and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.cli.main import main
from vramcast.errors import UsageError, VramcastError
from vramcast.features.diagnose.logs import reading
from vramcast.features.diagnose.logs.reading import read_log
from vramcast.features.diagnose.logs.series import CAPACITY, Series

LOGS = Path(__file__).with_name("logs")
JOB = "tests.jobs.tiny:JOB"


def write(path: Path, seconds: list[float], saving: int = 0) -> Path:
    lines = []
    for i, value in enumerate(seconds):
        lines.append(f"step {i}/{len(seconds)} | step_time={value:.4f}s | data_time=1ms")
        if saving and i % saving == 0:
            lines.append(f"Saving model checkpoint to out/{i}")
    path.write_text("\n".join(lines))
    return path


def test_warm_up_is_left_out(tmp_path: Path) -> None:
    found = vramcast.diagnose(write(tmp_path / "log", [30.0, 9.0] + [2.0] * 100)).diagnosis
    assert found.step is not None and found.step.seconds == pytest.approx(2.0) and found.step.warm_up == 2
    assert found.irregular == ()


def test_slow_steps_that_come_back(tmp_path: Path) -> None:
    seconds = [2.0 + (8.0 if i % 50 == 0 and i else 0.0) + i % 7 / 100 for i in range(500)]
    found = vramcast.diagnose(write(tmp_path / "log", seconds, saving=50), batch=1).diagnosis
    (slow,) = found.irregular
    assert slow.kind == "periodic" and slow.text.startswith("every 50 steps one takes 10")
    assert "beside saving" in slow.text
    assert slow.share == pytest.approx(9 * 8 / sum(seconds), rel=0.05)
    assert any("save and evaluate less often" in one.change for one in found.helps)


def test_steps_that_get_slower(tmp_path: Path) -> None:
    found = vramcast.diagnose(write(tmp_path / "log", [2.0 + i / 200 for i in range(400)])).diagnosis
    (drift,) = found.irregular
    assert drift.kind == "drift" and "slower" in drift.text


def test_a_stall(tmp_path: Path) -> None:
    seconds = [2.0] * 300
    seconds[123] = 60.0
    (stall,) = vramcast.diagnose(write(tmp_path / "log", seconds)).diagnosis.irregular
    assert stall.kind == "stalls" and "60.00 s at line 124, step 123" in stall.text


def test_data_loading_as_the_bottleneck(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"step={i} step_time=1.0s data_time=0.7s forward_time=0.1s\n" for i in range(20)))
    found = vramcast.diagnose(path).diagnosis
    assert found.bottleneck_kind == "data" and "700.0 ms of 1.00 s (70%)" in found.bottleneck
    assert found.helps[0].step_seconds == pytest.approx(0.3)
    assert any("faster card" in one.change for one in found.will_not_help)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_a_series_keeps_what_it_promises(values: list[float]) -> None:
    series = Series()
    for i, value in enumerate(values):
        series.add(value, i, i)
    assert series.count == len(values) and list(series.values) == values
    assert series.mean == pytest.approx(sum(values) / len(values))
    assert max(point.value for point in series.largest) == max(values)


def test_a_long_series_stays_small() -> None:
    series = Series()
    for i in range(10 * CAPACITY):
        series.add(1.0 + (i % 100) / 1000)
    assert len(series.values) <= 2 * CAPACITY and len(series.first) <= CAPACITY
    assert series.median == pytest.approx(1.05, abs=0.01)


def test_of_a_large_log_a_part_is_parsed_and_rare_lines_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WHOLE_BYTES", 1 << 16)
    monkeypatch.setattr(reading, "BUDGET_BYTES", 1 << 18)
    monkeypatch.setattr("vramcast.features.diagnose.logs.text.BLOCK_BYTES", 1 << 18)
    rng = random.Random(3)
    path = write(tmp_path / "log", [2.0 + rng.random() / 10 for _ in range(60_000)], saving=20_000)
    found = read_log(path)
    assert found.lines == 60_003 and found.lines_parsed < 12_000
    assert found.event_counts["saving"] == 3
    assert [event.line for event in found.events] == [2, 20_003, 40_004]
    assert found.main_track is not None and found.main_track.last_step == 59_999
    assert found.main_track.logged.median == pytest.approx(2.05, abs=0.01)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(LOGS / "torchtitan.log"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "vramcast-diagnosis" and document["version"] == 1
    assert document["step_seconds"] == pytest.approx(2.0, rel=0.01)
    assert document["setup"]["samples_per_step"] == 64


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"step=1 step_time=2s\nstep=2 step_time=2s\n"))
    monkeypatch.setattr("sys.stdin", text)
    assert main(["diagnose", "-"]) == 0
    assert "step 2.00 s (as logged)" in capsys.readouterr().out


def test_in_a_notebook() -> None:
    assert "<table>" in vramcast.diagnose(LOGS / "torchtitan.log")._repr_html_()


def test_torch_is_not_needed() -> None:
    code = (
        "import sys\nfrom vramcast.cli.main import main\n"
        f"code = main(['diagnose', {str(LOGS / 'torchtitan.log')!r}])\nsys.exit(code or ('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_with_a_job_memory_and_time_are_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    log = LOGS / "s4_train.log"
    assert main(["diagnose", str(log), "--job", JOB, "--gpu", "rtx-4090"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "reserved" in out and "fits RTX 4090" in out
    assert "model.blocks" in out and "predicted" in out
    assert "their time is not predicted either" not in out


BAD = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n\t\n", "is empty"),
    "foreign": (b"The quick brown fox\njumps\n", "none of its 2 lines says anything"),
    "binary": (bytes(range(256)) * 20, "is not text: byte 0x00 at offset 0"),
    "checkpoint": (b"PK\x03\x04" + b"\x00" * 50, "torch.save"),
    "cut gzip": (gzip.compress(b"step=1 step_time=2s\n" * 10_000)[:60], "cut short"),
    "cut trace": (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": 1, "dur"', "cut short at character"),
    "no events": (b'{"schemaVersion": 1, "traceEvents": []}', "without a single timed event"),
    "cut state": (b'{"log_history": [{"step": 1,', "not JSON"),
    "odd state": (b'{"log_history": 3}', "log_history is not a list"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data, said = BAD[name]
    path = tmp_path / "x.log"
    path.write_bytes(data)
    assert main(["diagnose", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nothing.log"], "no such file"),
        ([str(LOGS)], "is a folder"),
        ([str(LOGS / "s4_train.log"), "--gpu", "rtx-4090"], "with --job"),
        ([str(LOGS / "s4_train.log"), "--job", "nothing"], "no such file or folder"),
    ],
)
def test_bad_usage(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *argv]) == 2
    assert said in capsys.readouterr().err


def test_in_python_too() -> None:
    with pytest.raises(UsageError, match="write all or one"):
        vramcast.diagnose(LOGS / "s4_train.log", throughput="some")
    with pytest.raises(UsageError, match="above zero"):
        vramcast.diagnose(LOGS / "s4_train.log", batch=0)
    with pytest.raises(UsageError, match="logs are read"):
        vramcast.diagnose([])


# -- garbage ---------------------------------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    ["step", "1/9", "|", "0.5 samples/s", "=", ":", "1e999", "nan", "-3", "data_time", "ms", "%|", "[00:01<00:02,",
     "it/s]", "{'loss': ", '{"step": ', "}", "tps:", "loss:", "\r", "\n", "\x1b[31m", "9" * 400, "time", "(ms)",
     "backward", "Total", "global batch size", "0", "2025-13-45 99:99:99", "epoch", ",", "\u524d\u5411", "•", "━━━━",
     "1805.28ms (50.0%)"]
)  # fmt: skip
_LINES = st.lists(_WORDS | st.text(max_size=8), max_size=60).map(
    lambda words: " ".join(words).encode("utf-8", "replace")
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["traceEvents", "log_history", "step", "ph", "ts", "dur", "cat", "name", "args",
                                       "correlation", "time", "max_steps", "schemaVersion"]), inner, max_size=5),
    max_leaves=20,
).map(lambda value: json.dumps(value).encode())  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=400) | _LINES | _JSON | _LINES.map(gzip.compress) | _JSON.map(lambda d: d[:-3]))
def test_garbage_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.log"
    path.write_bytes(data)
    try:
        found = vramcast.diagnose(path, batch=2, gpus=2)
    except VramcastError:
        return
    json.dumps(found.to_document())
    assert found.diagnosis.bottleneck and found._repr_html_()


def test_parts_longer_than_the_step_contradict_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"step={i} step_time=1.0s data_time=0.2s forward_time=2.5s\n" for i in range(20)))
    found = vramcast.diagnose(path).diagnosis
    assert found.bottleneck_kind == "contradiction" and found.helps == ()
    assert "contradicts itself: its parts take 2.70 s, the step 1.00 s" in found.bottleneck
