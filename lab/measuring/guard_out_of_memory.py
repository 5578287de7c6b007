"""A training that runs out of memory in a phase of its step, and the guard's report of it beside the truth: the part of
guard_on_gpu.py that makes and judges it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def build(batch: int, layers: int = 12, width: int = 768) -> Callable[[], object]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=12, vocab_size=50257, n_positions=512, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 50257, (batch, 512)).cuda()

    def step() -> None:
        optimizer.zero_grad()
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    step.holds = model, optimizer  # type: ignore[attr-defined]
    return step


def out_of_memory(out: Path, batch: int, layers: int, phase: str, *, virtual: bool) -> dict[str, Any]:
    """Allow as much as lets it fail in `phase`, and compare the report with what the allocator and the objects say."""
    import torch

    import vramcast
    from vramcast.features.guard.watch import Watch
    from vramcast.memory import predict

    arguments = {"batch": batch, "layers": layers}
    total = torch.cuda.get_device_properties(0).total_memory
    if virtual:
        prediction = None
        torch.cuda.set_per_process_memory_fraction(4e9 / total)
    else:
        torch.cuda.init()
        first = vramcast.guard(build, arguments=arguments, quiet=True)
        first.close()
        for percent in range(99, 30, -1):
            limit = first.prediction.peak_reserved_bytes * percent // 100
            prediction = predict(first.prediction.trace, capacity_bytes=limit)
            if prediction.out_of_memory and prediction.out_of_memory.at.phase == phase:
                break
        torch.cuda.set_per_process_memory_fraction(limit / total)
    truth: dict[str, Any] = {}
    holds: list[Any] = []

    def observe(device: int, tried: int, *_: int) -> None:
        if truth:
            return
        stats = torch.cuda.memory_stats()
        segments = torch.cuda.memory._snapshot()["segments"]
        active = [b for s in segments for b in s["blocks"] if b["state"] == "active_allocated"]
        model, optimizer = holds
        parameters = list(model.parameters())
        truth.update(
            tried=tried,
            allocated=stats["allocated_bytes.all.current"],
            reserved=stats["reserved_bytes.all.current"],
            snapshot_allocated=sum(b["size"] for b in active),
            snapshot_requested=sum(b["requested_size"] for b in active),
            weights=sum(p.untyped_storage().nbytes() for p in parameters),
            gradients=sum(p.grad.untyped_storage().nbytes() for p in parameters if p.grad is not None),
            optimizer_state=sum(t.nbytes for s in optimizer.state.values() for t in s.values() if t.dim()),
        )

    torch._C._cuda_attach_out_of_memory_observer(observe)
    watch = Watch(prediction=prediction, report_dir=out)
    watch.start()
    message = ""
    try:
        step = build(**arguments)
        holds.extend(step.holds)  # type: ignore[attr-defined]
        for _ in range(3):
            step()
    except torch.OutOfMemoryError as error:
        message = str(error).splitlines()[0]
    watch.stop()
    result: dict[str, Any] = {"message": message, "truth": truth, "reports": [p.name for p in watch.reports]}
    if not watch.reports:
        return result | {"ok": False}
    report = json.loads(watch.reports[0].with_suffix(".json").read_text(encoding="utf-8"))
    parts = {name: row["alive_bytes"] for name, row in report["parts"].items()}
    # What the categories of live memory add up to, set beside the allocator's snapshot taken by our own observer.
    outside = parts.pop("outside PyTorch's allocator", 0)
    fragmentation = parts.pop("fragmentation", 0)
    names = {"weights": "weights", "gradients": "gradients", "optimizer state": "optimizer_state"}
    errors = {name: abs(parts.get(name, 0) - truth[key]) / truth["allocated"] for name, key in names.items()}
    errors["allocated"] = abs(sum(parts.values()) / truth["snapshot_allocated"] - 1)
    errors["reserved"] = abs((sum(parts.values()) + fragmentation) / truth["reserved"] - 1)
    result |= {
        "parts": parts | {"fragmentation": fragmentation, "outside": outside},
        "predicted_parts": {name: row["predicted_bytes"] for name, row in report["parts"].items()},
        "matched_share": report["matched_bytes"] / max(1, report["unowned_bytes"]),
        "errors": errors,
        "predicted_at": (report["predicted"] or {}).get("at"),
        "predicted_to_fail_in": prediction and prediction.out_of_memory.at.phase,
        "text": watch.reports[0].read_text(encoding="utf-8"),
    }
    return result | {"ok": max(errors.values()) <= 0.02}
