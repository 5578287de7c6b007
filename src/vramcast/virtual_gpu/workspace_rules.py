"""Between the kernels and the workspace models: turns tensors into shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual_gpu.workspaces.batch_norm import batch_norm_workspace_bytes
from vramcast.virtual_gpu.workspaces.convolution import (
    benchmarked_workspaces,
    cudnn_workspace_bytes,
    smaller_workspaces,
)
from vramcast.virtual_gpu.workspaces.problem import (
    L2_BYTES_UNKNOWN,
    SM_COUNT_UNKNOWN,
    Card,
    ConvolutionProblem,
)
from vramcast.virtual_gpu.workspaces.recurrent import (
    RecurrentShape,
    dropout_state_bytes,
    reserve_bytes,
    workspace_bytes,
)

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec

MIB = 1 << 20


class WorkspaceRules:
    def __init__(self, gpu: GpuSpec) -> None:
        self.gpu = gpu
        self._card = Card(
            gpu.compute_capability, gpu.sm_count or SM_COUNT_UNKNOWN, gpu.l2_bytes or L2_BYTES_UNKNOWN,
            gpu.total_memory_bytes,
        )  # fmt: skip

    def cublas_handle(self) -> int:
        """CUBLAS_WORKSPACE_CONFIG's default: eight 4096 KiB buffers on sm_90, else :4096:2:16:8."""
        return 32 * MIB if self.gpu.compute_capability[0] == 9 else 8320 * 1024

    def cublas_lt(self) -> int:
        """CUBLASLT_WORKSPACE_SIZE's default."""
        return MIB

    def convolution(self, problem: ConvolutionProblem) -> Iterator[int]:
        """Of cuDNN's plans, best first; what comes after the first is only asked for when that is refused."""
        yield cudnn_workspace_bytes(problem, self._card)
        yield from smaller_workspaces(problem, self._card)

    def benchmarked(self, problem: ConvolutionProblem) -> tuple[int, ...]:
        """Of all of cuDNN's plans, the largest first."""
        return benchmarked_workspaces(problem, self._card)

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
        from vramcast.virtual_gpu.kernels.reductions import max_threads_per_sm

        return dropout_state_bytes(self._card.sm_count, max_threads_per_sm(self.gpu))
