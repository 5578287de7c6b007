"""What `transformer_engine_torch` does to memory, with PyTorch's operators.

Signatures grew from version to version, so arguments that only steer a kernel are found by kind, not by place.
A function that is not here raises NotImplementedError with its name.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

# ruff: noqa: F401 - the names are read from outside, some with a star
from lab.published.engine_kernels.attention import fused_attn_bwd, fused_attn_fwd
from lab.published.engine_kernels.gemm import generic_gemm, te_general_grouped_gemm
from lab.published.engine_kernels.names import Names
from lab.published.engine_kernels.optimizers import (
    multi_tensor_adam,
    multi_tensor_adam_param_remainder,
    multi_tensor_l2norm,
    multi_tensor_scale,
    multi_tensor_scale_tensor,
    multi_tensor_unscale_l2norm,
)

CUBLASLT_VERSION = 130000
CUDNN_VERSION = 91300


class DType(enum.IntEnum):
    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


class NVTERoutingMapFormat(enum.IntEnum):
    BYTEMAP = 0
    BITMAP_U8 = 1


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


for _name in (
    *("NVTE_QKV_Layout", "NVTE_QKV_Format", "NVTE_Bias_Type", "NVTE_Mask_Type", "NVTE_Softmax_Type"),
    *("NVTE_Fused_Attn_Backend", "CommOverlapType", "CommOverlapAlgo", "Float8BlockScaleTensorFormat"),
):
    globals()[_name] = Names(_name)


class CommOverlapHelper:
    pass


class CommOverlap(CommOverlapHelper):
    pass


class CommOverlapP2P(CommOverlapHelper):
    pass


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


def get_fused_attn_backend(*settings: Any) -> Any:
    """cuDNN's kernels for any length in 16 bits, which is what the versions in question choose."""
    return Names("NVTE_Fused_Attn_Backend").NVTE_F16_arbitrary_seqlen


def layernorm_fwd(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, ln_out: Any, quantizer: Any, *rest: Any
) -> list[Any]:
    out, mean, rsigma = torch.native_layer_norm(input, input.shape[-1:], weight, bias, eps)
    return [out, mean.view(-1), rsigma.view(-1)]


def layernorm_bwd(
    dz: torch.Tensor, x: torch.Tensor, mu: torch.Tensor, rsigma: torch.Tensor, gamma: torch.Tensor, *rest: Any
) -> list[Any]:
    shape = (*x.shape[:-1], 1)
    return list(
        torch.ops.aten.native_layer_norm_backward(
            dz.contiguous(),
            x.contiguous(),
            x.shape[-1:],
            mu.view(shape),
            rsigma.view(shape),
            gamma,
            gamma,
            [True, True, True],
        )
    )


def rmsnorm_fwd(
    input: torch.Tensor, weight: torch.Tensor, eps: float, ln_out: Any, quantizer: Any, *rest: Any
) -> list[Any]:
    out, rsigma = torch.ops.aten._fused_rms_norm(input, input.shape[-1:], weight, eps)
    return [out, None, rsigma.view(-1)]


def rmsnorm_bwd(dz: torch.Tensor, x: torch.Tensor, rsigma: torch.Tensor, gamma: torch.Tensor, *rest: Any) -> list[Any]:
    rsigma = rsigma.view(*x.shape[:-1], 1)
    dx, dgamma = torch.ops.aten._fused_rms_norm_backward(
        dz.contiguous(), x.contiguous(), x.shape[-1:], rsigma, gamma, [True, True]
    )
    return [dx, dgamma]


def scaled_softmax_forward(input: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.softmax(input, -1)


def scaled_masked_softmax_forward(input: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.softmax(input, -1)


scaled_upper_triang_masked_softmax_forward = scaled_softmax_forward
scaled_aligned_causal_masked_softmax_forward = scaled_softmax_forward


def scaled_softmax_backward(output_grads: torch.Tensor, results: torch.Tensor, scale: float) -> torch.Tensor:
    """Writes into the gradient it is given."""
    torch.ops.aten.mul_(output_grads, 1.0)
    return output_grads


scaled_masked_softmax_backward = scaled_softmax_backward
scaled_upper_triang_masked_softmax_backward = scaled_softmax_backward
scaled_aligned_causal_masked_softmax_backward = scaled_softmax_backward


def fused_rope_forward(input: torch.Tensor, freqs: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.ops.aten.mul(input.detach(), 1.0)


def fused_rope_backward(output_grads: torch.Tensor, freqs: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.ops.aten.mul(output_grads.contiguous(), 1.0)


def bgrad_quantize(grad: torch.Tensor, quantizer: Any) -> tuple[torch.Tensor, Any]:
    if quantizer is None:
        return grad.view(-1, grad.shape[-1]).sum(0), grad
    raise NotImplementedError("transformer_engine_torch.bgrad_quantize with a quantizer")


def quantize(tensor: torch.Tensor, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
    if quantizer is None:
        return tensor
    raise NotImplementedError("transformer_engine_torch.quantize with a quantizer")


def swiglu(input: torch.Tensor, quantizer: Any, *rest: Any) -> torch.Tensor:
    if quantizer is not None:
        raise NotImplementedError("transformer_engine_torch.swiglu with a quantizer")
    return torch.ops.aten.mul(input[..., : input.shape[-1] // 2], input[..., input.shape[-1] // 2 :])


def dswiglu(grad: torch.Tensor, input: torch.Tensor, quantizer: Any, *rest: Any) -> torch.Tensor:
    if quantizer is not None:
        raise NotImplementedError("transformer_engine_torch.dswiglu with a quantizer")
    return torch.ops.aten.mul(input, 1.0)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"transformer_engine_torch.{name} is not written for the virtual card")

    missing.__name__ = name
    return missing
