"""Between the kernels and the workspace models: turns tensors into shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec

MIB = 1 << 20


class WorkspaceRules:
    def __init__(self, gpu: GpuSpec) -> None:
        self.gpu = gpu

    def cublas_handle(self) -> int:
        """CUBLAS_WORKSPACE_CONFIG's default: eight 4096 KiB buffers on sm_90, else :4096:2:16:8."""
        return 32 * MIB if self.gpu.compute_capability[0] == 9 else 8320 * 1024

    def cublas_lt(self) -> int:
        """CUBLASLT_WORKSPACE_SIZE's default."""
        return MIB

    def convolution(self, direction: str, x: Any, w: Any, y: Any, stride: Any, padding: Any, dilation: Any,
                    groups: int, transposed: bool) -> list[int]:
        return []

    def attention_backward(self, name: str, args: tuple[Any, ...]) -> list[int]:
        return []

    def rnn(self, **shape: Any) -> tuple[int, int]:
        return 0, 0

    def batch_norm(self, x: Any, training: bool) -> tuple[int, int]:
        return 0, 0

    def cudnn_dropout_state(self) -> int:
        return 0
