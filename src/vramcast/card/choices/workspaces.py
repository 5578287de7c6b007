"""Between the kernels and the workspace models: turns tensors into shapes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from vramcast.base.torch_versions import (
    LARGE_CUBLAS_WORKSPACE_BLACKWELL,
    LARGE_CUBLAS_WORKSPACE_THOR,
    ONE_CUBLAS_WORKSPACE,
    Version,
)
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.libraries.batch_norm import batch_norm_workspace_bytes
from vramcast.card.libraries.convolution import (
    Benchmark,
    benchmark,
    cudnn_workspace_bytes,
    smaller_workspaces,
)
from vramcast.card.libraries.problem import (
    L2_BYTES_UNKNOWN,
    SM_COUNT_UNKNOWN,
    Card,
    ConvolutionProblem,
)
from vramcast.card.libraries.recurrent import (
    RecurrentShape,
    dropout_state_bytes,
    reserve_bytes,
    workspace_bytes,
)

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec

MIB = 1 << 20


class WorkspaceRules:
    def __init__(self, gpu: GpuSpec, version: Version = INSTALLED) -> None:
        self.gpu = gpu
        self._version = version
        self._card = Card(
            gpu.compute_capability, gpu.sm_count or SM_COUNT_UNKNOWN, gpu.l2_bytes or L2_BYTES_UNKNOWN,
            gpu.total_memory_bytes,
        )  # fmt: skip

    def cublas_handle(self) -> int:
        """CUBLAS_WORKSPACE_CONFIG; its default is eight 4096 KiB buffers on the larger cards, else :4096:2:16:8."""
        buffers = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
        if buffers:
            return sum(int(kib) * 1024 * int(count) for kib, count in buffers)
        return 32 * MIB if self.gpu.compute_capability[0] in self._large_workspaces() else 8320 * 1024

    def _large_workspaces(self) -> tuple[int, ...]:
        if self._version >= LARGE_CUBLAS_WORKSPACE_THOR:
            return (9, 10, 11, 12)
        return (9, 10, 12) if self._version >= LARGE_CUBLAS_WORKSPACE_BLACKWELL else (9,)

    def cublas_lt(self) -> int | None:
        """CUBLASLT_WORKSPACE_SIZE, in KiB; None where cuBLASLt works in the workspace of cuBLAS."""
        unified = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
        if unified == "1" or (self._version >= ONE_CUBLAS_WORKSPACE and unified != "0"):
            return None
        size = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
        return int(size) * 1024 if size.isdecimal() else MIB

    def convolution(self, problem: ConvolutionProblem) -> Iterator[int]:
        """Workspaces of cuDNN's plans, best first; the later ones are only asked for when the first is refused."""
        yield cudnn_workspace_bytes(problem, self._card)
        yield from smaller_workspaces(problem, self._card)

    def benchmark(self, problem: ConvolutionProblem) -> Benchmark:
        """Workspaces of cuDNN's plans where all are tried out first."""
        return benchmark(problem, self._card)

    def rnn(
        self,
        *,
        mode: int,
        steps: int,
        batch: int,
        rows: int,
        input_size: int,
        hidden: int,
        proj: int,
        layers: int,
        directions: int,
        dropout: float,
        packed: bool,
        dtype: torch.dtype,
        backward: bool = False,
    ) -> tuple[int, int]:
        """Workspace of a call, and the reserve a training forward keeps."""
        shape = RecurrentShape(
            mode=mode, steps=steps, batch=batch, rows=rows, input_size=input_size, hidden=hidden, projection=proj,
            layers=layers, directions=directions, dropout=dropout > 0, packed=packed, item_bytes=dtype.itemsize,
            bfloat16=dtype is torch.bfloat16,
        )  # fmt: skip
        return workspace_bytes(shape, backward=backward), reserve_bytes(shape)

    def batch_norm(self, x: Any, *, backward: bool) -> int:
        channels_last = x.dim() > 3 and not x.is_contiguous()
        return batch_norm_workspace_bytes(x.size(), x.element_size(), channels_last, backward=backward)

    def cudnn_dropout_state(self) -> int:
        return dropout_state_bytes(self._card.sm_count, self.gpu.architecture.threads_per_sm)
