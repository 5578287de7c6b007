"""Questions about the card that scripts ask beside torch.cuda: pynvml, torch.profiler, the nested statistics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.card.scripts import runner
from vramcast.base.units import MIB

TRAINING = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
def step():
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_pynvml_answers_with_the_named_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pynvml = pytest.importorskip("pynvml")
    before = pynvml.nvmlInit
    runner(tmp_path)(
        f"""{TRAINING}
from pynvml import *
nvmlInit()
handle = nvmlDeviceGetHandleByIndex(nvmlDeviceGetCount() - 1)
start = nvmlDeviceGetMemoryInfo(handle)
print(nvmlDeviceGetName(handle), start.total, start.used + start.free == start.total)
held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
print(nvmlDeviceGetMemoryInfo(handle).used - start.used)
(process,) = nvmlDeviceGetComputeRunningProcesses(handle)
print(nvmlDeviceGetUtilizationRates(handle).gpu, process.usedGpuMemory == nvmlDeviceGetMemoryInfo(handle).used)
for call in (lambda: nvmlDeviceGetHandleByIndex(5), lambda: nvmlDeviceGetSerial(handle)):
    try:
        call()
    except NVMLError as error:
        print(type(error).__name__)
step()
nvmlShutdown()
"""
    )
    first, held, rest, *errors = capsys.readouterr().out.splitlines()
    assert first == f"NVIDIA GeForce RTX 4090 {24564 * MIB} True"
    assert int(held) == 64 * MIB
    assert rest == "0 True"
    assert errors == ["NVMLError_InvalidArgument", "NVMLError_NotSupported"]
    assert pynvml.nvmlInit is before


def test_a_profiler_of_the_card_prints_no_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prediction = runner(tmp_path)(
        f"""{TRAINING}
from torch.profiler import ProfilerActivity, profile, record_function, schedule
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=schedule(wait=1, warmup=1, active=1),
    on_trace_ready=lambda p: print("traced", len(p.key_averages()) > 5), record_shapes=True,
) as profiler:
    for _ in range(3):
        with record_function("step"):
            step()
        profiler.step()
with torch.autograd.profiler.profile(use_device="cuda") as profiler:
    step()
print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=1)[:3])
"""
    )
    out, err = capfd.readouterr()
    assert prediction.steps == 3
    assert "Failed to record CUDA event" not in err
    assert "traced True" in out


def test_nested_statistics_of_the_allocator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner(tmp_path)(
        f"""{TRAINING}
step()
nested, flat = torch.cuda.memory.memory_stats_as_nested_dict(), torch.cuda.memory_stats()
print(nested["allocated_bytes"]["all"]["peak"] == flat["allocated_bytes.all.peak"] > 0)
"""
    )
    assert capsys.readouterr().out == "True\n"


def test_the_accelerators_memory_is_the_cards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch.accelerator.memory")
    runner(tmp_path)(
        f"""{TRAINING}
step()
cuda, memory = torch.cuda, torch.accelerator.memory
for module in (memory, torch.accelerator):
    print(module.memory_allocated() == cuda.memory_allocated() > 0)
    print(module.max_memory_reserved() == cuda.max_memory_reserved() > 0)
print(memory.memory_stats()["allocated_bytes.all.peak"] == cuda.max_memory_allocated() > cuda.memory_allocated())
memory.reset_peak_memory_stats()
print(memory.max_memory_allocated() == cuda.memory_allocated())
print(memory.get_memory_info() == cuda.mem_get_info())
"""
    )
    assert capsys.readouterr().out.split() == ["True"] * 7


def test_every_way_to_ask_gives_one_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pynvml")
    runner(tmp_path)(
        f"""{TRAINING}
import os, pynvml, re, subprocess
step()
free, total = torch.cuda.mem_get_info()
used = total - free
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used == used)
print(torch.cuda.device_memory_used() == used > torch.cuda.memory_reserved())
mib = used // 2**20
ask = lambda *words: subprocess.check_output(["nvidia-smi", *words], text=True)
print(ask("--query-gpu=memory.used", "--format=csv,noheader,nounits") == f"{{mib}}\\n")
print(ask("--query-compute-apps=pid,used_memory", "--format=csv,noheader") == f"{{os.getpid()}}, {{mib}} MiB\\n")
print(re.search(r"(\\d+)MiB / (\\d+)MiB", ask()).groups() == (str(mib), "24564"))
print(float(ask("--query-gpu=power.draw", "--format=csv,noheader,nounits")) > 0)
print(len(os.popen("stty size", "r").read().split()))
"""
    )
    assert capsys.readouterr().out.split() == ["True"] * 6 + ["2"]
