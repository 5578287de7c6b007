"""Traces made by hand, small enough to work out their account on paper."""

from __future__ import annotations

import random

from vramcast.base.units import GIB, MIB
from vramcast.gpus import find_gpu
from vramcast.trace import StepTrace, TraceBuilder
from vramcast.trace.builder import KIND_ID

TORCH = "2.11.0+cu130"


def build(builder: TraceBuilder, gpu: str = "rtx-4090", conf: str = "", capacity_bytes: int | None = None) -> StepTrace:
    spec = find_gpu(gpu)
    return builder.build(
        gpu=spec.to_dict(),
        torch_version=TORCH,
        allocator_conf=conf,
        capacity_bytes=spec.pytorch_bytes if capacity_bytes is None else capacity_bytes,
        context_bytes=spec.context_bytes,
        versions={"transformers": "5.17.0"},
        source="train.py --batch-size 8",
    )


def transformer(layers: int = 4, steps: int = 3, scale: int = 1, **built: object) -> StepTrace:
    """Weights, saved activations, gradients and Adam state of a stack of equal layers, step by step."""
    b = TraceBuilder()
    op = {name: b.intern_op(name) for name in ("aten.empty", "aten.mm", "aten.add", "aten._foreach_sqrt")}
    root = b.intern_module("")
    layer = [b.intern_module(f"Net.layers.{i}") for i in range(layers)]
    head = b.intern_module("Net.head")
    setup, forward, backward, optimizer = (
        b.intern_phase(name) for name in ("setup", "forward", "backward", "optimizer")
    )
    width = 64 * MIB * scale

    def alloc(size: int, kind: str, op_name: str, module: int, phase: int) -> int:
        block = b.alloc(size, op[op_name], module, phase)
        b.set_kind(block, KIND_ID[kind])
        return block

    weights = [alloc(width, "weights", "aten.empty", module, setup) for module in (*layer, head)]
    state: list[int] = []
    for _ in range(steps):
        b.mark("phase", "forward")
        inputs = alloc(3 * MIB * scale, "inputs", "aten.empty", root, forward)
        saved = [alloc(96 * MIB * scale + 100, "saved activations", "aten.mm", module, forward) for module in layer]
        logits = alloc(200 * MIB * scale, "temporaries", "aten.mm", head, forward)
        b.mark("phase", "backward")
        gradients = []
        for module, activation in zip(reversed(layer), reversed(saved), strict=True):
            scratch = alloc(32 * MIB * scale, "temporaries", "aten.mm", module, backward)
            gradients.append(alloc(width, "gradients", "aten.mm", module, backward))
            b.free(scratch)
            b.free(activation)
        gradients.append(alloc(width, "gradients", "aten.mm", head, backward))
        b.free(logits)
        b.free(inputs)
        b.mark("phase", "optimizer")
        if not state:
            state = [alloc(2 * width, "optimizer state", "aten.empty", root, optimizer) for _ in weights]
        scratch = alloc(width * (layers + 1), "temporaries", "aten._foreach_sqrt", root, optimizer)
        b.free(scratch)
        b.mark("step")
        for block in gradients:
            b.free(block)
    b.note("unknown read", "Tensor.item() of a value that is not known: 1.0 is taken", "train.py:31", count=3)
    return build(b, **built)  # type: ignore[arg-type]


def random_trace(seed: int, events: int = 300, **built: object) -> StepTrace:
    """Anything that can happen: sizes of every pool, frees in any order, marks, several streams."""
    rng = random.Random(seed)
    b = TraceBuilder()
    ops = [b.intern_op(f"op{i}") for i in range(3)]
    modules = [b.intern_module(name) for name in ("", "a", "a.b", "a.b.0", "a.b.1", "c")]
    phases = [b.intern_phase(name) for name in ("setup", "forward", "backward")]
    live: list[int] = []
    for _ in range(events):
        choice = rng.random()
        if choice < 0.5 or not live:
            size = rng.choice(
                (1, 511, 512, 4096, MIB, MIB + 1, 5 * MIB, 10 * MIB, 33 * MIB, rng.randrange(1, GIB // 8))
            )
            block = b.alloc(size, rng.choice(ops), rng.choice(modules), rng.choice(phases), rng.choice((0, 0, 0, 7)))
            b.set_kind(block, rng.randrange(len(KIND_ID)))
            live.append(block)
        elif choice < 0.95:
            b.free(live.pop(rng.randrange(len(live))))
        else:
            b.mark(rng.choice(("step", "phase", "empty_cache", "synchronize", "mark")), "x")
    return build(b, **built)  # type: ignore[arg-type]
