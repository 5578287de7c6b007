"""What to look at before a training is started. Every figure is of the traced job, or read from this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from vramcast.base.host_memory import available_bytes
from vramcast.base.units import format_gib, format_size
from vramcast.features.plan.result import CheckItem
from vramcast.gpus.state import LocalGpu, survey
from vramcast.prediction.job_prediction import JobPrediction

_WEIGHTS = ("*.safetensors", "*.bin")


def checklist(wished: JobPrediction, local: LocalGpu | None) -> tuple[CheckItem, ...]:
    return tuple(_items(wished, local))


def _items(wished: JobPrediction, local: LocalGpu | None) -> Iterator[CheckItem]:
    yield _card(wished, local)
    driver = survey().driver if local is not None else None
    if driver is not None:
        yield CheckItem(name="driver", text=f"{driver}, and it answers", ok=True)
    yield from _weights_on_disk(wished)
    if wished.job.task == "training" and wished.parameter_rows:
        yield _checkpoints(wished)
    if wished.parameter_rows:
        yield _host_memory(wished)
    torch = wished.prediction.versions.get("torch")
    if torch:
        yield CheckItem(name="software", text=f"predicted for torch {torch}; others may differ a little")


def _card(wished: JobPrediction, local: LocalGpu | None) -> CheckItem:
    needed = wished.prediction.with_margin_bytes
    if local is None:
        there = wished.prediction.limit_bytes
        text = (
            f"{wished.gpu.short_name}, {format_gib(there)} usable: nothing else may run on it; look with "
            "`vramcast gpus --here` where it is"
        )
        return CheckItem(name="card", text=text, needed_bytes=needed, there_bytes=there)
    users = ", ".join(f"{process.name or 'process'} ({process.pid})" for process in local.processes[:3])
    text = f"device {local.index}, {local.name}: {format_gib(local.free_bytes)} free of {format_gib(local.total_bytes)}"
    return CheckItem(
        name="card",
        text=f"{text}; in use by {users}" if users else text,
        ok=not local.processes if local.processes_known else None,
        needed_bytes=needed,
        there_bytes=local.free_bytes,
    )


def _weights_on_disk(wished: JobPrediction) -> Iterator[CheckItem]:
    """A prediction needs none, a training mostly does."""
    for name, part in wished.job.components.items():
        folder = part.transformers or part.diffusers
        if folder is None:
            continue
        place = Path(folder, part.subfolder) if part.subfolder else Path(folder)
        if any(next(place.glob(pattern), None) for pattern in _WEIGHTS):
            yield CheckItem(name="weights", text=f"{name}: there, in {place}", ok=True)
        else:
            yield CheckItem(name="weights", text=f"{name}: none in {place}, only its config: fetch them", ok=False)


def _checkpoints(wished: JobPrediction) -> CheckItem:
    """Weights as they are saved (adapters alone for LoRA), and what the optimizer keeps."""
    parts = wished.job.components
    saved = state = 0
    for row in wished.parameter_rows:
        part = parts.get(row.module.partition(".")[0])
        if part is None or not part.is_trained:
            continue
        saved += sum(tensor.weights_bytes for tensor in row.tensors if tensor.trained or part.mode != "lora")
        state += row.optimizer_bytes
    ema = wished.job.ema
    copies = 2 if ema is not None and ema.enabled else 1
    checkpoint_bytes = saved * copies + state
    free = shutil.disk_usage(Path()).free
    text = (
        f"a checkpoint takes {format_size(checkpoint_bytes)} ({format_size(saved * copies)} weights, "
        f"{format_size(state)} optimizer state); {format_size(free)} free in this folder"
    )
    return CheckItem(
        name="disk", text=text, ok=checkpoint_bytes <= free, needed_bytes=checkpoint_bytes, there_bytes=free
    )


def _host_memory(wished: JobPrediction) -> CheckItem:
    """Weights are built in the computer's memory, part by part, before they are moved."""
    sizes: dict[str, int] = {}
    for row in wished.parameter_rows:
        name = row.module.partition(".")[0]
        sizes[name] = sizes.get(name, 0) + row.weights_bytes
    parts = wished.job.components
    staying = sum(size for name, size in sizes.items() if name in parts and parts[name].device == "cpu")
    moved = max((size for name, size in sizes.items() if name not in parts or parts[name].device != "cpu"), default=0)
    needed = (staying + moved) * wished.job.gpus.count
    there = available_bytes()
    each = f" for {wished.job.gpus.count} processes" if wished.job.gpus.count > 1 else ""
    text = f"at least {format_size(needed)}{each} while weights are loaded, and what the data loader takes"
    if there is not None:
        text += f"; {format_size(there)} available here"
    return CheckItem(
        name="computer's memory", text=text, ok=None if there is None else needed <= there,
        needed_bytes=needed, there_bytes=there,
    )  # fmt: skip
