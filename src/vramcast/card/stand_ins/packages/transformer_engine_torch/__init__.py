"""Answers `import transformer_engine_torch`, the compiled part of TransformerEngine."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.stand_ins.kernels.transformer_engine import *  # noqa: F403
from vramcast.card.stand_ins.kernels.transformer_engine import ACTIVATIONS, ENUMERATIONS, SOFTMAXES, UPDATES
from vramcast.card.stand_ins.ops import NotInStandIn

for _functions in (ACTIVATIONS, ENUMERATIONS, SOFTMAXES, UPDATES):
    globals().update(_functions)

CUBLASLT_VERSION = 130000
CUDNN_VERSION = 91300


class CommOverlapHelper: ...


class CommOverlap(CommOverlapHelper): ...


class CommOverlapP2P(CommOverlapHelper): ...


class FP8TensorMeta: ...


def get_cublasLt_version() -> int:
    return CUBLASLT_VERSION


def get_cudnn_version() -> int:
    return CUDNN_VERSION


def get_num_cublas_streams() -> int:
    return 4


def get_stream_priority_range(device: int = 0) -> tuple[int, int]:
    return 0, -5


def device_supports_multicast(device: int = -1) -> bool:
    return torch.cuda.get_device_properties().major >= 9


def ubuf_built_with_mpi() -> bool:
    return False


def nvte_built_with_cublasmp() -> bool:
    return False


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotInStandIn(f"transformer_engine_torch.{name}")

    missing.__name__ = name
    return missing
