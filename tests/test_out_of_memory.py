"""The message of torch.OutOfMemoryError on a virtual card."""

from __future__ import annotations

import pytest

from vramcast.allocator import CachingAllocator, OutOfMemory
from vramcast.base.units import GIB, MIB
from vramcast.gpus import find_gpu
from vramcast.memory.out_of_memory import describe
from vramcast.trace import TraceBuilder
from vramcast.trace.builder import KIND_ID


def test_message_reads_like_torch_and_says_what_was_alive() -> None:
    spec = find_gpu("rtx-4090")
    allocator = CachingAllocator(capacity_bytes=GIB)
    builder = TraceBuilder()
    op, phase = builder.intern_op("aten.empty"), builder.intern_phase("setup")
    for i in range(5):
        block = builder.alloc(150 * MIB, op, builder.intern_module(f"Net.layers.{i}"), phase)
        builder.set_kind(block, KIND_ID["weights" if i < 3 else "gradients"])
        allocator.malloc(150 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(400 * MIB)
    text = describe(caught.value, spec, builder.live_blocks(), spec.context_bytes)
    assert text.startswith("CUDA out of memory. Tried to allocate 400.0 MiB.")
    assert "virtual RTX 4090" in text
    assert "total capacity of 23.52 GiB" in text
    assert "Alive at this moment: weights 450.0 MiB, gradients 300.0 MiB" in text
    assert "Largest modules: Net.layers.0 150.0 MiB" in text
    assert "2 more 300.0 MiB" in text


def test_message_without_modules_and_with_nothing_alive() -> None:
    allocator = CachingAllocator(capacity_bytes=MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(GIB)
    text = describe(caught.value, find_gpu("t4"), TraceBuilder().live_blocks(), 0)
    assert "Alive at this moment: nothing" in text
    assert "modules" not in text
