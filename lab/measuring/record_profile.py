"""Record a torch.profiler trace of a few training steps on the GPU, and the same phases by CUDA events beside it.

    python -m lab.measuring.record_profile --out FOLDER

`vramcast diagnose FOLDER/trace.json.gz` should split the step as FOLDER/phases.json says.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

PHASES = ("forward", "backward", "optimizer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device, width = options.device, options.width
    data = DataLoader(TensorDataset(torch.randn(64 * 24, width)), batch_size=64)
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    timed: list[dict[str, float]] = []

    def step(batch: torch.Tensor, marks: list[torch.cuda.Event] | None) -> None:
        def mark() -> None:
            if marks is not None:
                marks.append(torch.cuda.Event(enable_timing=True))
                marks[-1].record()

        mark()
        loss = model(batch.to(device)).square().mean()
        mark()
        loss.backward()
        mark()
        optimizer.step()
        optimizer.zero_grad()
        mark()

    on_gpu = device == "cuda"
    for i, (batch,) in enumerate(data):
        marks: list[torch.cuda.Event] | None = [] if on_gpu else None
        step(batch, marks)
        if marks is not None:
            torch.cuda.synchronize()
            if i >= 5:
                timed.append({name: marks[k].elapsed_time(marks[k + 1]) / 1e3 for k, name in enumerate(PHASES)})
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    trace = options.out / "trace.json.gz"
    start = time.perf_counter()
    with profile(activities=activities, schedule=schedule(wait=1, warmup=2, active=4, repeat=1),
                 on_trace_ready=lambda p: p.export_chrome_trace(str(trace))) as profiler:  # fmt: skip
        for _, (batch,) in zip(range(8), data, strict=False):
            step(batch, None)
            if on_gpu:
                torch.cuda.synchronize()
            profiler.step()
    phases = {name: statistics.median(step[name] for step in timed) for name in PHASES} if timed else {}
    document = {"phase_seconds": phases, "device": torch.cuda.get_device_name() if on_gpu else "cpu",
                "torch": torch.__version__, "profiled_seconds": time.perf_counter() - start}  # fmt: skip
    (options.out / "phases.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
