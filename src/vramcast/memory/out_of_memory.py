"""The message of an out-of-memory error: torch's own sentences, then what was alive."""

from __future__ import annotations

from vramcast.allocator import OutOfMemory
from vramcast.base.units import format_size
from vramcast.gpus import GpuSpec
from vramcast.trace import LiveBlocks

_KINDS_SHOWN = 6
_MODULES_SHOWN = 3


def describe(error: OutOfMemory, gpu: GpuSpec, held: LiveBlocks, context_bytes: int, card: int = 0) -> str:
    """Begins as torch's message does, because programs look for "out of memory" and "Tried to allocate" in it."""
    in_use = error.reserved_bytes + context_bytes
    total = gpu.total_memory_bytes
    free = max(0, total - in_use) if error.free_bytes is None else error.free_bytes
    unused = error.reserved_bytes - error.allocated_bytes
    lines = [
        f"CUDA out of memory. Tried to allocate {format_size(error.segment_bytes)}. GPU {card} (virtual "
        f"{gpu.short_name}) has a total capacity of {format_size(total)} of which {format_size(free)} is free. "
        f"Including non-PyTorch memory, this process has {format_size(in_use)} memory in use. Of the allocated memory "
        f"{format_size(error.allocated_bytes)} is allocated by PyTorch, and {format_size(unused)} is reserved by "
        "PyTorch but unallocated.",
        "Alive at this moment: " + _largest(held.bytes_by_kind(), _KINDS_SHOWN),
    ]
    modules = {name or "(no module)": size for name, size in held.bytes_by_module().items()}
    if set(modules) - {"(no module)"}:
        lines.append("Largest modules: " + _largest(modules, _MODULES_SHOWN))
    return "\n".join(lines)


def _largest(sizes: dict[str, int], count: int) -> str:
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    shown = [f"{name} {format_size(size)}" for name, size in ordered[:count] if size]
    rest = sum(size for _, size in ordered[count:])
    if rest:
        shown.append(f"{len(ordered) - count} more {format_size(rest)}")
    return ", ".join(shown) or "nothing"
