"""`vramcast advise`: what is printed fits, is what predict says of it, and keeps what is pinned."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

import vramcast
from tests.jobs.tiny import JOB as TINY
from vramcast.cli.job_options import load
from vramcast.cli.main import main, make_parser
from vramcast.errors import VramcastError
from vramcast.features.advise.combination import Combination
from vramcast.features.advise.front import pareto, spread
from vramcast.features.advise.knob_names import KNOBS
from vramcast.features.advise.knobs import options_for
from vramcast.features.advise.option import Option
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.features.advise.search import Search
from vramcast.gpus import find_gpu
from vramcast.jobs.load import with_overrides
from vramcast.jobs.validation import make_job

same_torch = pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="the golden output is of torch 2.11")

YAML = """\
# mine
name: mixer
components:
  model: {factory: "tests.jobs.tiny:mixer"}   # three blocks
inputs:
  x: {shape: [batch, 64]}
  labels: {shape: [batch], dtype: int64, below: 10}
sizes:
  batch: 200000   # too many
precision: fp32
"""
LARGE = {**TINY, "sizes": {"batch": 200_000}}
RARE = ["offload", "gpus", "gradients"]
"""Knobs that take many runs, for tests that are about others."""
FEW = [knob for knob in KNOBS if knob not in ("batch", "checkpointing", "allocator")]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("vramcast.yaml")
    path.write_text(YAML, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def found() -> vramcast.features.advise.advise.JobAdvice:  # type: ignore[name-defined]
    return vramcast.advise(LARGE, memory="3GiB")


def test_what_is_advised_fits_and_keeps_the_batch_of_a_step(found: Any) -> None:
    assert found.fits and not found.advice.asked.fits
    for number, one in enumerate(found.best):
        assert one.prediction.fits and one.samples_per_step == 200_000
        read = vramcast.check(found.job(number), memory="3GiB")
        assert read.fits and read.verdict.needed_bytes == one.prediction.device_bytes
        time = vramcast.predict(found.job(number), found.advice.asked.gpu)
        assert one.step_seconds == pytest.approx(time.step_seconds)
        assert one.samples_per_second == pytest.approx(time.throughput.samples_per_second)
    times = [one.time_factor for one in found.best]
    assert times == sorted(times, reverse=True), "a further suggestion is faster than those before it"


def test_what_is_replayed_under_another_setting_is_what_a_trace_says() -> None:
    """Expandable segments are replayed from the trace of the others."""
    job, gpu = make_job({**LARGE, "accumulation": 2}, "job"), find_gpu("rtx-4090")
    options = options_for(job, gpu, [knob for knob in KNOBS if knob != "allocator"])
    with Runs(gpu, steps=3, workers=1, progress=lambda text: None) as runs:
        (asked,) = runs.trace([Wish(job, "")])
        assert isinstance(asked, Traced)
        search = Search(job=job, runs=runs, options=options, objective="memory", asked=asked)
        ones = [Combination((option,)) for option in options["allocator"]]
        search._trace(ones)
        assert runs.n_traced == 1
    for one in ones:
        read = vramcast.check(with_overrides(job, one.changes), "rtx-4090")
        assert read.verdict.needed_bytes == search.prediction(one).device_bytes


def test_only_as_many_blocks_are_checkpointed_as_it_takes() -> None:
    job = {**LARGE, "components": {"model": {"factory": "tests.jobs.tiny:mixer", "arguments": {"depth": 8}}}}
    keep = ["batch", "precision", "optimizer", "allocator"]
    some, every = (vramcast.advise(job, memory=memory, keep=keep).best[0] for memory in ("10GiB", "6GiB"))
    (change,) = some.changes
    assert change.text.startswith("checkpoint ") and change.text.endswith(" of 8 blocks")
    assert 1 < some.time_factor < every.time_factor
    blocks = some.overrides["checkpointing"]["modules"]
    assert all(name.startswith("blocks.") for name in blocks)
    read = vramcast.check({**job, "checkpointing": some.overrides["checkpointing"]}, memory="10GiB")
    assert read.fits and read.verdict.needed_bytes == some.prediction.device_bytes


def test_the_front_has_few_points_and_no_gaps() -> None:
    def point(size: int, time: float) -> Combination:
        option = Option(knob="batch", text=f"{size}", changes={"size": size}, cost="", time=time)
        return Combination((option,))

    def size(one: Combination) -> int:
        return int(one.changes["size"])

    many = [point(1000 + 100 * i, 2 / (1 + i)) for i in range(40)]
    beaten = [point(1550, 1.9), point(2000, 0.2)]
    front = pareto([*many, *beaten], size, lambda one: one.time)
    assert front == many
    few = spread(front, size, 6)
    assert len(few) == 6 and few[0] is many[0] and few[-1] is many[-1]
    steps = [log(size(b) / size(a)) for a, b in itertools.pairwise(few)]
    assert max(steps) < 3 * log(size(many[-1]) / size(many[0])) / len(steps)


def test_two_processes_say_what_one_says(found: Any) -> None:
    """In an interpreter of its own: forks come before anything was traced."""
    code = (
        "import json, sys, vramcast; from tests.jobs.tiny import JOB\n"
        "found = vramcast.advise({**JOB, 'sizes': {'batch': 200_000}}, memory='3GiB', workers=2)\n"
        "print(json.dumps([[one.text, one.prediction.device_bytes] for one in found.best]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = dict(json.loads(run.stdout))
    assert next(iter(said)) == found.best[0].text
    for one in found.best:
        assert said.get(one.text, one.prediction.device_bytes) == one.prediction.device_bytes


def test_replays_that_another_process_takes_are_the_same() -> None:
    """A run under other settings comes back in between; a wish that cannot be traced says why, in its place."""
    code = (
        "from tests.jobs.tiny import JOB; from vramcast.features.advise.runs import Runs, Wish\n"
        "from vramcast.gpus import find_gpu; from vramcast.jobs.validation import make_job\n"
        "settings = ('expandable_segments:True', 'max_split_size_mb:64')\n"
        "bad = make_job({**JOB, 'components': {'model': {'factory': 'tests.jobs.tiny:nothing'}}}, 'job')\n"
        "wishes = [Wish(make_job(JOB, 'job'), '', under=settings), Wish(bad, '', under=settings)]\n"
        "found = []\n"
        "for workers in (2, 1):\n"
        "    with Runs(find_gpu('rtx-4090'), steps=3, workers=workers, progress=lambda text: None) as runs:\n"
        "        found.append(runs.trace(wishes))\n"
        "(one, bad), (other, bad_too) = found\n"
        "assert one == other and set(one.under) == set(settings)\n"
        "assert str(bad) == str(bad_too) and 'nothing' in str(bad)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_front_is_one(found: Any) -> None:
    points = [(one.prediction.device_bytes, one.time_factor) for one in found.advice.front]
    assert points == sorted(points)
    assert all(a[1] > b[1] for a, b in itertools.pairwise(points))
    assert all(one.prediction.fits for one in found.advice.front)


def test_least_memory_takes_no_more_than_the_fastest(found: Any) -> None:
    least = vramcast.advise(LARGE, memory="3GiB", objective="memory", keep=RARE).best[0]
    assert least.prediction.device_bytes <= min(one.prediction.device_bytes for one in found.best)


def test_closest_changes_least() -> None:
    assert vramcast.advise(LARGE, gpu="a100-80gb", objective="closest", keep=FEW).best[0].changes == ()
    assert len(vramcast.advise(LARGE, memory="3GiB", objective="closest", keep=RARE).best[0].changes) == 1


@pytest.mark.parametrize("pin", ["batch", "checkpointing", "precision", "optimizer", "allocator"])
def test_what_is_kept_is_not_touched(pin: str) -> None:
    advice = vramcast.advise(LARGE, memory="3GiB", keep=[pin, *RARE]).advice
    shown = [*advice.best, *advice.front, *([advice.smallest] if advice.smallest else [])]
    assert shown and all(change.knob != pin for one in shown for change in one.changes)


def test_the_diff_applies_and_predicts_what_was_advised(job: Path) -> None:
    best = vramcast.advise(str(job), memory="3GiB", keep=FEW, allow_code=True).best[0]
    assert best.config.kind == "diff"
    patch = subprocess.run(["patch", "-p0"], input=best.config.text + "\n", text=True, capture_output=True, check=False)
    assert patch.returncode == 0, patch.stdout + patch.stderr
    text = job.read_text(encoding="utf-8")
    assert "# mine" in text and "# three blocks" in text and "# too many" in text
    read = vramcast.check(str(job), memory="3GiB", allow_code=True)
    assert read.verdict.needed_bytes == best.prediction.device_bytes


def test_the_command_predicts_what_was_advised() -> None:
    args = make_parser().parse_args(["advise", "tests.jobs.tiny:JOB", "--batch", "200000", "--memory", "3GiB"])
    best = vramcast.advise(load(args), memory="3GiB", keep=["batch"]).best[0]
    assert best.config.kind == "command"
    read = make_parser().parse_args(shlex.split(best.config.text)[1:])
    result = vramcast.check(load(read), memory=read.memory)
    assert result.verdict.needed_bytes == best.prediction.device_bytes


@pytest.mark.parametrize("name", ["new.yaml", "elsewhere/new.yaml"])
def test_write_makes_a_new_file_and_never_overwrites(job: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("elsewhere").mkdir()
    argv = ["advise", str(job), "--allow-code", "--memory", "3GiB", "--write", name, "--keep", ",".join(FEW)]
    assert main([*argv, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"][0]
    assert vramcast.check(name, memory="3GiB", allow_code=True).verdict.needed_bytes == best["device_bytes"]
    assert main(argv) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert job.read_text(encoding="utf-8") == YAML


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    wide = {"factory": "tests.jobs.tiny:mixer", "arguments": {"width": 8192}}
    job = {**TINY, "components": {"model": wide}, "sizes": {"batch": 4}}
    advice = vramcast.advise(job, memory="2GiB", keep=["offload"]).advice
    assert not advice.fits and advice.smallest is not None and advice.smallest_card is not None
    assert advice.smallest.prediction.device_bytes > advice.asked.limit_bytes
    assert advice.smallest_card.fits
    argv = ["advise", "tests.jobs.tiny:JOB", "--batch", "200000", "--memory", "3GiB"]
    assert main([*argv, "--keep", "batch,precision,allocator,checkpointing,offload,gpus"]) == 1
    assert "Nothing that can be changed makes it fit with what is kept" in capsys.readouterr().out


def test_everything_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["advise", "tests.jobs.tiny:JOB", "--batch", "200000", "--memory", "3GiB", "--keep", ",".join(KNOBS)]
    assert main([*argv, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["best"] and document["smallest"]["overrides"] == {}
    assert document["smallest"]["device_bytes"] > document["limit_bytes"] and document["smallest_card"]
    assert main(argv) == 1
    said = capsys.readouterr().out
    assert "There is nothing to change: all that could be is kept" in said
    assert "the smallest known card that holds it" in said
    assert main([*argv, "--full"]) == 1
    said = capsys.readouterr().out
    assert "Most of it is" in said and "The smallest known card that holds it" in said


def test_memory_below_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """Even frozen they would not fit, and there is nothing to freeze."""
    wide = {"factory": "tests.jobs.tiny:mixer", "arguments": {"width": 16384, "depth": 2}}
    advice = vramcast.advise({**TINY, "components": {"model": wide}, "sizes": {"batch": 1}}, memory="4GiB").advice
    assert not advice.fits and advice.smallest is not None
    assert "weights" in advice.too_large or "optimizer state" in advice.too_large
    assert advice.smallest_card is not None
    assert advice.smallest_card.limit_bytes > advice.smallest.prediction.device_bytes > advice.asked.limit_bytes


def test_a_margin_is_kept_where_it_can_be(found: Any) -> None:
    first = found.best[0].prediction
    assert first.with_margin_bytes <= first.limit_bytes


def test_a_model_that_cannot_be_checkpointed_is_not_told_to() -> None:
    job = {
        "components": {"model": {"factory": "tests.jobs.tiny:looks_at_data"}},
        "inputs": {"x": {"shape": ["batch", 8]}},
        "sizes": {"batch": 2},
    }
    with pytest.raises(VramcastError):
        vramcast.advise(job, memory="3GiB")
    conv = {
        "components": {"model": {"factory": "tests.jobs.tiny:conv_net"}},
        "inputs": {"image": {"shape": ["batch", 3, 256, 256]}, "target": {"shape": ["batch", 3, 256, 256]}},
        "sizes": {"batch": 256},
        "loss": "l1",
    }
    advice = vramcast.advise(conv, memory="4GiB").advice
    assert any("checkpoint every block" in text for text in advice.refused)
    assert all(change.knob != "checkpointing" for one in (*advice.best, *advice.front) for change in one.changes)


def test_a_card_without_bf16_is_not_told_to_use_it() -> None:
    keep = [knob for knob in KNOBS if knob != "precision"]
    advice = vramcast.advise(LARGE, gpu="t4", objective="memory", keep=keep).advice
    assert any(change.knob == "precision" for one in advice.best for change in one.changes)
    assert all("bf16" not in change.text for one in (*advice.best, *advice.front) for change in one.changes)


@same_torch
def test_golden(job: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    # Which offloads there are depends on what is installed.
    assert main(["advise", str(job), "--allow-code", "--memory", "3GiB", "--keep", "offload", "--full"]) == 0
    fits = capsys.readouterr().out
    pins = "batch,offload,gpus"
    assert main(["advise", str(job), "--allow-code", "--memory", "1100MiB", "--keep", pins, "--full"]) == 1
    golden("advise", f"{fits}\n{capsys.readouterr().out}")


def test_a_notebook(found: Any) -> None:
    html = found._repr_html_()
    assert html.startswith('<div class="vramcast">') and "front" in html


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--keep", "batsch"], "did you mean 'batch'?"),
        (["--objective", "beauty"], "write one of throughput, memory, closest"),
        (["--gpu", "rtx-4091"], "did you mean"),
        (["--gpu", "t4", "--device", "0"], "leave one out"),
        (["--write", "best.txt"], "ends with .yaml"),
        (["--write", "no/such/folder/best.yaml"], "there is no folder"),
        (["--memory", "lots"], "cannot read 'lots' as a size"),
        (["--memory=-5GiB"], "cannot read '-5GiB' as a size"),
        (["--memory", "0"], "a size must be above zero"),
        (["--memory", "100MiB"], "too small for a CUDA context"),
    ],
)
def test_nonsense_is_a_message(capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    assert main(["advise", "tests.jobs.tiny:JOB", *argv]) == 2
    out, err = capsys.readouterr()
    assert not out and said in err and "Traceback" not in err


def test_a_tensor_larger_than_the_card_with_expandable_segments() -> None:
    """What it would need is asked without a limit, and expandable segments have an end."""
    job = {**TINY, "sizes": {"batch": 2_000_000}, "task": "inference", "allocator_conf": "expandable_segments:True"}
    found = vramcast.check(job, memory="3GiB")
    assert not found.fits and found.verdict.needed_bytes > 3 * 2**30
