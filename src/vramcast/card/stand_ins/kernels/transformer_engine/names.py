"""Enumerations of the extension. Of most only the names matter."""

from __future__ import annotations

import enum
import zlib
from typing import Any

import torch


class DType(enum.IntEnum):
    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


_TORCH = {
    DType.kByte: torch.uint8, DType.kInt32: torch.int32, DType.kFloat32: torch.float32, DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16, DType.kFloat8E4M3: torch.float8_e4m3fn, DType.kFloat8E5M2: torch.float8_e5m2,
}  # fmt: skip


def torch_dtype(dtype: Any) -> torch.dtype:
    return _TORCH[DType(int(dtype))]


class FP8FwdTensors(enum.IntEnum):
    GEMM1_INPUT = 0
    GEMM1_WEIGHT = 1
    GEMM1_OUTPUT = 2
    GEMM2_INPUT = 3
    GEMM2_WEIGHT = 4
    GEMM2_OUTPUT = 5
    GEMM3_INPUT = 6
    GEMM3_WEIGHT = 7
    GEMM3_OUTPUT = 8


class FP8BwdTensors(enum.IntEnum):
    GRAD_OUTPUT1 = 0
    GRAD_INPUT1 = 1
    GRAD_OUTPUT2 = 2
    GRAD_INPUT2 = 3
    GRAD_OUTPUT3 = 4
    GRAD_INPUT3 = 5


class FusedAttentionBackend(enum.IntEnum):
    NVTE_No_Backend = -1
    NVTE_F16_max512_seqlen = enum.nonmember(0)  # of older versions
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


class RoutingMapFormat(enum.IntEnum):
    BYTEMAP = 0
    BITMAP_U8 = 1


class Name(str):
    """One value of an enumeration: equal to itself by name, and with the attributes of pybind11's enumerations."""

    @property
    def name(self) -> str:
        return str(self)

    def __int__(self) -> int:
        return zlib.crc32(self.encode())


class Names:
    """An enumeration that has every name one asks it for."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(name)

    def __or__(self, other: Any) -> Any:
        return Any

    def __ror__(self, other: Any) -> Any:
        return Any

    def __call__(self, *values: Any) -> Any:
        return Name(str(values))


ENUMERATIONS: dict[str, Any] = {
    "NVTE_Fused_Attn_Backend": FusedAttentionBackend,
    "NVTERoutingMapFormat": RoutingMapFormat,
    **{
        name: Names(name)
        for name in (
            *("NVTE_QKV_Layout", "NVTE_QKV_Format", "NVTE_Bias_Type", "NVTE_Mask_Type", "NVTE_Softmax_Type"),
            *("CommOverlapType", "CommOverlapAlgo", "Float8BlockScaleTensorFormat", "NVTEScalingMode"),
            "NVTEQBHistogramMode",
        )
    },
}
