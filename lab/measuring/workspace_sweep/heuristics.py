"""cuDNN's own heuristics, asked on the device, for convolutions that are not run: thousands a second.

Case number i of a seed is always the same convolution, so that a row holds only its number and the answers: for
forward, backward-data and backward-weight the first plan that PyTorch's filter lets pass, as engine:workspace.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from lab.measuring.workspace_sweep import convolutions, layers
from vramcast.card.libraries.cudnn_query import (
    ConvolutionProblem,
    CudnnDevice,
    CudnnError,
    CudnnLibrary,
)

HEADER = "id,forward,backward_data,backward_weight"
OPERATIONS = ("forward", "backward_data", "backward_weight")
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
LIMIT_BYTES = 12 << 30
PLANS_EVERY = 25  # every 25th case lists ten plans, as the benchmark mode would try them
_TYPE_HANDLE, _GRAPH_HANDLE, _CONFIG_WORKSPACE, _ENGINE_INDEX = 0, 800, 303, 1301


class DeviceHeuristics(CudnnLibrary):
    """The same questions with a handle of the real device."""

    def __init__(self) -> None:
        library = ctypes.CDLL("libcudnn.so.9")
        super().__init__(library, 0)
        self._handle = ctypes.c_void_p()
        if library.cudnnCreate(ctypes.byref(self._handle)) != 0:
            raise CudnnError("cudnnCreate")

    def _finish_graph(self, graph: ctypes.c_void_p) -> None:
        self._set(graph, _GRAPH_HANDLE, _TYPE_HANDLE, 1, ctypes.byref(self._handle))
        super()._finish_graph(graph)

    def _set_heuristics_device(self, heuristics: ctypes.c_void_p, device: ctypes.c_void_p) -> None:
        """The handle says which device."""

    def answers(self, problem: ConvolutionProblem, limit: int) -> list[str]:
        """engine:workspace of the first plans, in order."""
        plans: list[str] = []
        with self._descriptors() as make:
            graph = self._graph(problem, make)
            for mode in (0, 2):
                for config in self._configs(graph, ctypes.c_void_p(), mode, make):
                    if self._is_filtered(config, problem, make):
                        continue
                    engine, index, size = make(2), ctypes.c_int64(-1), ctypes.c_int64(-1)
                    self._get(config, 300, 15, 1, ctypes.byref(engine))
                    self._get(engine, _ENGINE_INDEX, 3, 1, ctypes.byref(index))
                    self._get(config, _CONFIG_WORKSPACE, 3, 1, ctypes.byref(size))
                    plans.append(f"{'F' if mode else ''}{index.value}:{size.value}")
                    if len(plans) == limit:
                        return plans
        return plans


def draw(seed: int, index: int) -> convolutions.Conv:
    """The convolution with this number: as in the sweep, but nothing is allocated, so larger ones too."""
    rng = random.Random(f"heuristics/{seed}/{index}")
    if seed == 1:
        return replace(convolutions.draw(rng, LIMIT_BYTES, None), benchmark=False)
    return layers.draw(rng)


def problems(conv: convolutions.Conv) -> Iterator[ConvolutionProblem]:
    """What PyTorch asks cuDNN for: one dimension as two, a transposed convolution as the backward of another."""
    size, out, kernel = conv.size, conv.out_size, conv.kernel
    stride, padding, dilation = conv.stride, conv.padding, conv.dilation
    if len(size) == 1:
        size, out, kernel = (1, *size), (1, *out), (1, *kernel)
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    x, y = (conv.batch, conv.channels_in, *size), (conv.batch, conv.channels_out, *out)
    w = (*conv.weight_shape[:2], *kernel)
    if conv.transposed:
        x, y = y, x
    for operation in OPERATIONS:
        if conv.transposed:
            operation = {"forward": "backward_data", "backward_data": "forward"}.get(operation, operation)
        yield ConvolutionProblem(
            operation, x, w, y, padding, stride, dilation, DTYPES[conv.dtype], conv.layout != "nchw", conv.tf32
        )


def measure(library: DeviceHeuristics, seed: int, index: int) -> str:
    """One CSV row."""
    cells = [str(index)]
    limit = 10 if index % PLANS_EVERY == 0 else 1
    for problem in problems(draw(seed, index)):
        try:
            cells.append(" ".join(library.answers(problem, limit)))
        except CudnnError as failure:
            cells.append(f"!{failure}")
    return ",".join(cells)


__all__ = ["HEADER", "CudnnDevice", "DeviceHeuristics", "draw", "measure", "problems"]
