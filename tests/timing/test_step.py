"""The time of a small network, from the virtual card to the figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vramcast.card.device.context import virtual_gpu
from vramcast.cli.main import main
from vramcast.gpus import find_gpu
from vramcast.timing import StepTime, Sync, predict_step
from vramcast.timing.costs import CostModel
from vramcast.timing.iteration import last_iteration
from vramcast.timing.settings import HOST_VARIABLE, TimingSettings, timed_for, timing_settings
from vramcast.timing.step import costs_of
from vramcast.timing.workspaces import turned_operands
from vramcast.trace import StepTrace
from vramcast.trace.calls import GRAD, MARKS, RECOMPUTED


class Net(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(512, 2048), nn.Linear(2048, 512)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def block(x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]

        return checkpoint(block, x, use_reentrant=False) if self.again else block(x)  # type: ignore[no-any-return]


def traced(batch: int = 4096, *, again: bool = False, read: bool = False, passes: int = 1) -> StepTrace:
    with virtual_gpu("h200") as card:
        card.log_ops(after_steps=None)
        model = Net(again).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            for _ in range(passes):
                loss = model(torch.randn(batch, 512, device="cuda")).square().mean()
                if read:
                    loss.item()
                loss.backward()
            optimizer.step()

        step()
        with card.iteration():
            step()
    return card.trace()


def time_of(trace: StepTrace, **options: object) -> StepTime:
    time = predict_step(trace, **options)  # type: ignore[arg-type]
    assert time is not None
    return time


@pytest.fixture(scope="module")
def plain() -> StepTrace:
    return traced()


def test_the_ops_of_the_last_step_are_in_the_trace(plain: StepTrace) -> None:
    calls = plain.calls
    assert calls is not None
    ops = [calls.ops[number] for number in calls.call]
    assert ops.count("aten.addmm.default") == 2  # of one step
    assert ops.count("aten.mm.default") == 3
    assert "f32(4096,512), f32(512,2048){1,512}" in calls.arguments[calls.ops.index("aten.addmm.default")]
    assert calls.settings["cudnn tf32"] and not calls.settings["matmul tf32"]
    modules = {plain.modules[calls.module[row]] for row, op in enumerate(ops) if op.startswith("aten.mm")}
    assert modules == {"Net.first", "Net.second"}


def test_a_saved_trace_keeps_its_time_and_an_older_file_has_none(plain: StepTrace, tmp_path: Path) -> None:
    plain.save(tmp_path / "t")
    again = StepTrace.load(tmp_path / "t")
    assert time_of(again).seconds == pytest.approx(time_of(plain).seconds)
    import gzip

    document = json.loads(gzip.decompress((tmp_path / "t").read_bytes()))
    del document["calls"]
    (tmp_path / "old").write_bytes(gzip.compress(json.dumps(document).encode()))
    assert predict_step(StepTrace.load(tmp_path / "old")) is None


def test_everything_adds_up(plain: StepTrace) -> None:
    time = time_of(plain)
    assert sum(time.phases.values()) == pytest.approx(time.seconds)
    assert time.modules.seconds == pytest.approx(time.seconds, rel=1e-6)
    assert sum(time.limits.values()) == pytest.approx(1.0)
    assert time.low_seconds < time.seconds < time.high_seconds
    assert time.by_values().high_seconds == pytest.approx(2 * time.seconds)
    assert time.flops == pytest.approx(3 * 2 * 2 * 4096 * 512 * 2048, rel=0.2)
    assert time.peak_share is not None and 0 < time.peak_share < 1
    for node in time.modules.walk():
        assert sum(child.seconds for child in node.children) <= node.seconds * 1.000001


def test_a_step_that_waits_for_the_host_says_what_the_card_alone_would_take() -> None:
    small, large = time_of(traced(8)), time_of(traced(262144))
    assert small.host_bound and not large.host_bound
    assert small.device_seconds < small.card_seconds < 0.5 * small.seconds
    assert large.card_seconds == pytest.approx(large.seconds, rel=0.05)
    assert small.host == "undisturbed" and small.host_factor == 1.0


def test_no_step_takes_longer_than_host_and_card_together(plain: StepTrace) -> None:
    for trace in (plain, traced(8), traced(64, read=True), traced(4096, again=True, passes=3)):
        time = time_of(trace)
        most = time.host_seconds + time.device_seconds + 2e-5 * time.ops
        assert time.card_seconds <= time.seconds <= most


def test_the_host_is_named_and_can_be_chosen(
    plain: StepTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traced(8).save(tmp_path / "t")
    found = []
    for host in ("undisturbed", "2"):
        main(["show", "--json", "--host", host, str(tmp_path / "t")])
        found.append(json.loads(capsys.readouterr().out)["time"])
    assert [time["host_factor"] for time in found] == [1.0, 2.0] and found[0]["host_bound"]
    assert found[1]["step_seconds"] == pytest.approx(2 * found[0]["step_seconds"], rel=0.1)
    assert found[1]["card_seconds"] == pytest.approx(found[0]["card_seconds"])
    main(["show", "--host", "2", str(tmp_path / "t")])
    words = " ".join(capsys.readouterr().out.split())
    assert "host assumed: one that takes 2.00 times as long as an undisturbed one" in words
    assert "the card alone would take" in words
    assert main(["show", "--host", "slow", str(tmp_path / "t")]) == 2


def test_the_host_here_is_measured_and_named(
    plain: StepTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramcast.features.measure.host_benchmark.slowdown_here", lambda: 1.5)
    plain.save(tmp_path / "t")
    main(["show", "--json", "--host", "here", str(tmp_path / "t")])
    time = json.loads(capsys.readouterr().out)["time"]
    assert time["host_factor"] == 1.5
    assert time["host"] == "this computer, which takes 1.50 times as long as an undisturbed one"
    assert HOST_VARIABLE not in os.environ


def test_what_is_chosen_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOST_VARIABLE, "1.3")
    assert timing_settings().host == "1.3"
    with timed_for(host="2"), timed_for(calibration=tmp_path):
        assert timing_settings() == TimingSettings("2", tmp_path)
    assert timing_settings().host == "1.3"


def test_more_work_takes_longer(plain: StepTrace) -> None:
    seconds = time_of(plain).seconds
    assert time_of(traced(32768)).seconds > 2 * seconds
    assert time_of(plain, gpu=find_gpu("rtx-3060")).seconds > seconds
    assert time_of(plain, data_seconds=0.5).seconds == pytest.approx(0.5 + seconds, rel=0.1)
    assert time_of(plain, data_seconds=0.5).phases["data"] > 0.49


def test_recomputation_is_shown_apart() -> None:
    time = time_of(traced(16384, again=True))
    once = time_of(traced(16384))
    assert not once.recompute_seconds
    assert 0.2 * once.phases["forward"] < time.recompute_seconds < time.phases["backward"]
    calls = traced(again=True).calls
    assert calls is not None
    assert any(flags & RECOMPUTED for flags in calls.flags)


def test_reads_are_waits(plain: StepTrace) -> None:
    assert time_of(plain).waits == 0
    assert time_of(traced(read=True)).waits == 1


def test_passes_that_were_not_traced_count(plain: StepTrace) -> None:
    three = traced(passes=3)
    seconds = time_of(three).seconds
    assert time_of(three, further_passes=3).seconds == pytest.approx(seconds + 3 * (seconds / 3), rel=0.25)


def test_several_cards_sum_their_gradients(plain: StepTrace) -> None:
    sync = Sync(cards=8, gradient_bytes=8 << 20)
    assert time_of(plain, sync=sync).phases["gradient sync"] > 0
    assert "gradient sync" not in time_of(plain).phases


def test_no_op_is_faster_than_the_card(plain: StepTrace) -> None:
    calls = plain.calls
    assert calls is not None
    for gpu in ("h200", "rtx-4090"):
        spec = find_gpu(gpu)
        model = CostModel.for_gpu(spec)
        for op, cost in zip(calls.ops, costs_of(calls, model), strict=True):
            fastest = max(spec.fp16_tflops or 0, spec.fp32_tflops or 0) * 1e12
            assert op in MARKS or cost.device_seconds >= cost.flops / fastest


def test_a_card_that_was_not_measured_says_so(plain: StepTrace) -> None:
    time = time_of(plain, gpu=find_gpu("rtx-4090"))
    assert not time.calibrated
    assert "RTX 4090" in time.source


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "model = torch.nn.Linear(256, 256).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(10):\n"
        "    model(torch.randn(64, 256).cuda()).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    return path


def test_a_script_gets_a_time_and_a_picture(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Callable[..., int] = main
) -> None:
    chrome, saved = tmp_path / "step.json", tmp_path / "saved"
    assert run(["run", "--gpu", "h200", "--json", "--chrome", str(chrome), "--save", str(saved), str(script)]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert time["step_seconds"] > 0 and time["waits"] == 1  # the batch is copied from ordinary memory
    events = json.loads(chrome.read_text())["traceEvents"]
    phases = [event["name"] for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert {"forward", "backward", "optimizer"} <= set(phases)
    assert any(event["ph"] == "C" for event in events)
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    assert run(["show", "--gpu", "rtx-4090", str(saved)]) == 0
    assert "this card was not measured" in capsys.readouterr().out


def test_noting_ops_keeps_no_memory_alive() -> None:
    with virtual_gpu("h200"):
        before = torch.cuda.memory_allocated()
        tensor = torch.empty(1 << 20, device="cuda")
        moved = torch.empty(0, device="cuda").set_(tensor.untyped_storage(), 0, (16,), (1,))
        torch._foreach_add([tensor, tensor], 1.0)
        del tensor, moved
        assert torch.cuda.memory_allocated() == before


def test_autograd_records_only_what_leads_to_a_parameter() -> None:
    with virtual_gpu("h200") as card:
        card.log_ops(after_steps=None)
        model = nn.Linear(8, 8).cuda()
        with card.iteration():
            mask = torch.ones(4, 8, device="cuda") * 2
            (model(mask) * mask).sum().backward()
    calls = card.trace().calls
    assert calls is not None
    recorded = [calls.flags[row] & GRAD for row in range(len(calls.call)) if "aten.mul" in calls.ops[calls.call[row]]]
    assert recorded[:2] == [0, GRAD]


def _with_loader(samples: int, conversions: int = 0) -> StepTrace:
    with virtual_gpu("h200") as gpu:
        layer = nn.Linear(256, 256, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.zeros(3 * samples, 256, dtype=torch.float64))
        for (rows,) in torch.utils.data.DataLoader(data, batch_size=samples):
            for _ in range(conversions):
                rows.float()
            optimizer.zero_grad()
            layer(torch.empty(64, 256, device="cuda")).sum().backward()
            optimizer.step()
    return gpu.trace()


def test_what_a_loader_does_in_the_process_is_no_part_of_the_step() -> None:
    few, many = (predict_step(_with_loader(samples)) for samples in (2, 512))
    assert few is not None and many is not None
    assert many.seconds == pytest.approx(few.seconds, rel=1e-6)


def test_large_tensors_of_the_host_cost_what_they_move() -> None:
    """512 rows of 256 numbers of 8 bytes: 1 MiB that is read and at most as much that is written, ten times."""
    without, ten = (predict_step(_with_loader(512, conversions)) for conversions in (0, 10))
    assert without is not None and ten is not None
    assert ten.seconds - without.seconds == pytest.approx(10 * 2 * (1 << 20) / 12e9, rel=0.1)


@pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="what the cuDNN of torch 2.11 chooses")
def test_workspaces_say_which_convolutions_turn_their_operands() -> None:
    with virtual_gpu("h200") as card:
        card.log_ops(after_steps=None)
        few, many = nn.Conv1d(10, 10, 8, padding=7).cuda(), nn.Conv2d(64, 64, 3).cuda()
        with card.iteration():
            few(torch.randn(32, 10, 1020, device="cuda", requires_grad=True)).square().sum().backward()
            many(torch.randn(32, 64, 32, 32, device="cuda", requires_grad=True)).square().sum().backward()
    trace = card.trace()
    assert trace.calls is not None
    found = turned_operands(trace, trace.calls, range(len(trace.calls)))
    assert sorted(found.values()) == [(False,), (False, False), (True,), (True, True)]


@pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="what the cuDNN of torch 2.11 chooses")
def test_a_replayed_convolution_turns_what_it_turned_when_it_was_recorded() -> None:
    with virtual_gpu("h200") as card:
        card.log_ops(after_steps=None)
        layer, graph = nn.Conv2d(64, 64, 3).cuda(), torch.cuda.CUDAGraph()
        images = torch.randn(32, 64, 32, 32, device="cuda")
        with torch.cuda.graph(graph):
            layer(images)
        with card.iteration():
            graph.replay()
    trace = card.trace()
    assert trace.calls is not None
    assert list(turned_operands(trace, trace.calls, last_iteration(trace.calls)).values()) == [(True,)]
