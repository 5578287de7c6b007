"""What there is for a run on the card just now. Only looks."""

from __future__ import annotations

import sys
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.base.units import parse_bytes
from vramcast.features.guard.result import Room
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.gpus.state import local_gpus


def room(
    gpu: str | GpuSpec | None,
    memory: str | int | None = None,
    device: int | None = None,
    *,
    own_bytes: int | None = 0,
    otherwise: str | None = None,
) -> Room:
    """`own_bytes`: what of this process's tensors belongs to the run that is predicted, and so is counted in its
    prediction again; None: all of it. `otherwise`: the card to take where there is none here."""
    size_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if gpu is not None:
        room_there = _named(find_gpu(gpu) if isinstance(gpu, str) else gpu)
    else:
        room_there = _by_torch(device, own_bytes) or _by_driver(device) or _by_size(size_bytes, otherwise)
    if size_bytes is None or size_bytes >= room_there.available_bytes:
        return room_there
    return Room(
        gpu=room_there.gpu,
        total_bytes=room_there.total_bytes,
        free_bytes=min(size_bytes, room_there.free_bytes),
        available_bytes=size_bytes,
        where=f"allowed on {room_there.gpu.short_name}",
    )


def _named(spec: GpuSpec) -> Room:
    total = spec.total_memory_bytes
    where = f"on {spec.short_name}"
    return Room(gpu=spec, total_bytes=total, free_bytes=total, available_bytes=total, where=where)


def _by_size(size_bytes: int | None, otherwise: str | None) -> Room:
    if otherwise is not None:
        return _named(find_gpu(otherwise))
    if size_bytes is None:
        raise UsageError("there is no GPU here to look at: name one, e.g. gpu='rtx-4090'")
    return _named(GpuSpec.from_memory(size_bytes))


def _by_torch(device: int | None, own_bytes: int | None) -> Room | None:
    """From this process's own CUDA context, if it has one: what is free is then without that context."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    index = torch.cuda.current_device() if device is None else device
    free, total = torch.cuda.mem_get_info(index)
    spec = _spec(torch.cuda.get_device_name(index), total)
    reserved, allocated = torch.cuda.memory_reserved(index), torch.cuda.memory_allocated(index)
    own = allocated if own_bytes is None else min(own_bytes, allocated)
    # Cached blocks are the allocator's to use again; kernels that are loaded already are not given credit for.
    available = free + reserved - allocated + own + spec.context_bytes
    where = f"free on {spec.short_name} (device {index})"
    fraction = torch.cuda.get_per_process_memory_fraction(index)
    if fraction < 1:
        allowed = int(total * fraction) + spec.context_bytes - (allocated - own)
        if allowed < available:
            available, where = allowed, f"allowed on {spec.short_name} (device {index}, {fraction:.0%} of it)"
    return Room(gpu=spec, total_bytes=total, free_bytes=free, available_bytes=available, where=where)


def _by_driver(device: int | None) -> Room | None:
    """From the driver, without a CUDA context of our own."""
    cards = local_gpus()
    card = next((local for local in cards if local.index == (device or 0)), None)
    if card is None:
        if cards and device is not None:
            raise UsageError(f"device {device}: the visible cards are {', '.join(str(local.index) for local in cards)}")
        return None
    where = f"free on {card.spec().short_name} (device {card.index})"
    total = card.total_bytes
    return Room(
        gpu=card.spec(), total_bytes=total, free_bytes=card.free_bytes, available_bytes=card.free_bytes, where=where
    )


def _spec(name: str, total_bytes: int) -> GpuSpec:
    try:
        return find_gpu(name)
    except UsageError:
        return GpuSpec.from_memory(total_bytes)
