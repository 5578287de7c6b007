"""What the source of a Triton kernel says about a launch: the memory that it touches, and its instructions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from vramcast.trace.fused_kernels import FUSED

_HEURISTIC = re.compile(r"@triton_heuristics\.(\w+)\(")
_PARAMETERS = re.compile(r"^def \w+\(([^)]*)\)", re.MULTILINE)
_ACCESS = re.compile(r"\btl\.(load|store|atomic_\w+)\((\w+)")
_SIZES = re.compile(r"([xyz]|r\d*_?)numel$")
_VALUE = re.compile(r"_?tmp[\w, ]* = |tl\.store\(|tl\.atomic_")
_LOOP = re.compile(r"( *)for ")

# Instructions of a thread for each element, apart from _LINE for every line that computes a value. Random numbers are
# Philox rounds; sine and cosine reduce large arguments; the running maximum and sum of a softmax take an exponential
# each. Read off kernels of compiled models on an H200, which take this many where memory does not decide.
_LINE = 0.6
_INSTRUCTIONS = (
    (re.compile(r"tl\.rand|tl\.randint|triton_helpers\.rand"), 70),
    (re.compile(r"\.(sin|cos)\("), 45),
    (re.compile(r"online_softmax_combine"), 38),
    (re.compile(r"\.erf\("), 32),
    (re.compile(r"\.(exp|exp2|log|log2|log1p|tanh|pow|sqrt|rsqrt|sigmoid)\("), 4),
    (re.compile(r" / "), 3),
    (re.compile(r"tl\.(load|store|atomic)"), 2),
)


class Traffic:
    """Read once from the source; each launch has its own sizes."""

    def __init__(self, source: str) -> None:
        found = _HEURISTIC.search(source)
        self.op = f"triton.{FUSED}{found[1] if found else 'pointwise'}.default"
        parameters = _PARAMETERS.search(source)
        self._names = [part.partition(":")[0].strip() for part in parameters[1].split(",")] if parameters else []
        accesses = Counter((kind == "load", name) for kind, name in _ACCESS.findall(source))
        self._loads = {name: times for (is_load, name), times in accesses.items() if is_load}
        self._stores = {name: times for (is_load, name), times in accesses.items() if not is_load}
        self._is_template = self.op.endswith("template.default")
        self._instructions = _count_instructions(source)

    def written(self) -> tuple[int, ...]:
        """Which parameters the kernel may write to, by their places. A name of its own stands for any of them."""
        if not self._stores.keys() <= set(self._names):
            return tuple(range(len(self._names)))
        return tuple(place for place, name in enumerate(self._names) if name in self._stores)

    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What is noted of a launch: bytes read and written, over how many elements it goes and reduces, and how many
        instructions all threads execute.

        A tensor is touched once, and no more of it than the kernel has elements: of an embedding's table only the rows
        that are looked up. A template (matrix products, attention) is noted with its tensors.
        """
        if self._is_template:
            return tuple(arg for arg in args if isinstance(arg, torch.Tensor))
        by_name = dict(zip(self._names, args, strict=False))
        sizes = {name: value for name, value in by_name.items() if isinstance(value, int) and _SIZES.match(name)}
        elements = math.prod(sizes.values()) if sizes else 0
        reduced = math.prod(value for name, value in sizes.items() if name.startswith("r"))
        read = written = 0
        for name, value in by_name.items():
            if isinstance(value, torch.Tensor):
                read += _touched(value, self._loads.get(name, 0), elements)
                written += _touched(value, self._stores.get(name, 0), elements)
        looped, once = self._instructions
        return read, written, elements, reduced, int((looped + once / max(reduced, 1)) * elements)


def _count_instructions(source: str) -> tuple[float, float]:
    """For each element, and once for all that are reduced together."""
    body = source.partition("@triton.jit")[2].splitlines()
    loops = [match for line in body if (match := _LOOP.match(line))]
    inside = once = 0.0
    for line in body:
        if _VALUE.match(line.strip()):
            count = _LINE + next((extra for pattern, extra in _INSTRUCTIONS if pattern.search(line)), 0)
            if not loops or line.startswith(loops[0][1] + "    "):
                inside += count
            else:
                once += count
    return inside, once


def _touched(tensor: torch.Tensor, times: int, elements: int) -> int:
    if not times:
        return 0
    most = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return int((min(most, times * elements) if elements else most) * tensor.element_size())
