"""What the source of a Triton kernel says about the memory that a launch touches."""

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

    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What is noted of a launch: bytes read and written, and over how many elements it goes and reduces.

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
        return read, written, elements, reduced


def _touched(tensor: torch.Tensor, times: int, elements: int) -> int:
    if not times:
        return 0
    most = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return int((min(most, times * elements) if elements else most) * tensor.element_size())
