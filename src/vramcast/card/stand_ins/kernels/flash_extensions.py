"""Extensions that older programs build from flash-attn's csrc folder: dropout_layer_norm (ln_api.cpp of version 2.8.4),
rotary_emb and xentropy_cuda_lib (of version 2.5, which had them last)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.kernels import cross_entropy, rotary
from vramcast.card.stand_ins.ops import NotInStandIn, is_traced, multiprocessors, op


@op(
    "flash_attn::dropout_add_ln_fwd(Tensor x0, Tensor? residual, Tensor gamma, Tensor? beta, Tensor? rowscale, "
    "Tensor? colscale, float dropout_p, bool residual_in_fp32) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def norm_forward(
    x0: Tensor, residual: Tensor | None, gamma: Tensor, beta: Tensor | None, rowscale: Tensor | None,
    colscale: Tensor | None, dropout_p: float, residual_in_fp32: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """z, and x, the mask and the statistics of the rows; x is empty where it is x0."""
    of_residual = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x0.dtype
    none = x0.new_empty(0)
    given = residual is not None or rowscale is not None or colscale is not None
    x = torch.empty_like(x0, dtype=of_residual) if given or dropout_p > 0 or of_residual != x0.dtype else none
    mask = torch.empty_like(x0, dtype=torch.uint8) if dropout_p > 0 else none
    z = torch.empty_like(x0, dtype=gamma.dtype if x0.dtype != gamma.dtype and torch.is_autocast_enabled() else x0.dtype)
    mean, deviation = (x0.new_empty(x0.shape[0], dtype=torch.float32) for _ in range(2))
    return z, x, mask, mean, deviation


@op(
    "flash_attn::dropout_add_ln_bwd(Tensor dz, Tensor? dx, Tensor x, Tensor gamma, Tensor? colscale, "
    "bool has_residual, ScalarType itype) -> (Tensor, Tensor, Tensor, Tensor)"
)
def norm_backward(
    dz: Tensor, dx: Tensor | None, x: Tensor, gamma: Tensor, colscale: Tensor | None, has_residual: bool,
    itype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    dx0 = torch.empty_like(x, dtype=itype)
    dresidual = torch.empty_like(x) if has_residual else x.new_empty(0)
    dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(gamma)
    blocks = 1 if is_traced(x) else multiprocessors(x)
    partial = [x.new_empty((blocks, gamma.numel()), dtype=torch.float32) for _ in range(2)]
    del partial
    return dx0, dresidual, dgamma, dbeta


def dropout_add_ln_fwd(
    x0: Tensor, residual: Tensor | None, gamma: Tensor, beta: Tensor | None, rowscale: Tensor | None,
    colscale: Tensor | None, x0_subset: Any, z_subset: Any, dropout_p: float, epsilon: float, rowscale_const: float,
    z_numrows: int, gen: Any, residual_in_fp32: bool = False, is_rms_norm: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    if x0_subset is not None or z_subset is not None:
        raise NotInStandIn("dropout_layer_norm with subsets")
    z, x, mask, mean, deviation = torch.ops.flash_attn.dropout_add_ln_fwd(
        x0, residual, gamma, beta, rowscale, colscale, dropout_p, residual_in_fp32
    )
    return z, x if x.numel() else None, mask if mask.numel() else None, mean, deviation


def dropout_add_ln_bwd(
    dz: Tensor, dx: Tensor | None, x: Tensor, x0: Tensor | None, dmask: Tensor | None, mu: Tensor, rsigma: Tensor,
    gamma: Tensor, rowscale: Tensor | None, colscale: Tensor | None, *rest: Any,
) -> tuple[Any, ...]:  # fmt: skip
    has_residual = next((bool(value) for value in rest if isinstance(value, bool)), False)
    dx0, dresidual, dgamma, dbeta = torch.ops.flash_attn.dropout_add_ln_bwd(
        dz, dx, x, gamma, colscale, has_residual, dz.dtype
    )
    return dx0, dresidual if has_residual else None, dgamma, dbeta, None, None


def apply_rotary(x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, out1: Tensor, out2: Tensor, conj: bool) -> None:
    """Writes into its outputs, which may be its inputs."""
    torch.ops.flash_attn.rotary_(out1, cos, sin)
    torch.ops.flash_attn.rotary_(out2, cos, sin)


def forward(logits: Tensor, labels: Tensor, smoothing: float, total_classes: int = -1) -> tuple[Tensor, Tensor]:
    """xentropy_cuda_lib.forward."""
    losses, sums, _ = torch.ops.flash_attn.cross_entropy_fwd(logits, labels, None)
    return losses, sums


def backward(
    grad_loss: Tensor, logits: Tensor, max_log_sum_exp: Tensor, labels: Tensor, smoothing: float, inplace: bool,
    total_classes: int = -1,
) -> Tensor:  # fmt: skip
    """xentropy_cuda_lib.backward."""
    if inplace:
        torch.ops.flash_attn.cross_entropy_bwd_(grad_loss, logits, max_log_sum_exp, labels)
        return logits
    grad: Tensor = torch.ops.flash_attn.cross_entropy_bwd(grad_loss, logits, max_log_sum_exp, labels)
    return grad


assert cross_entropy is not None and rotary is not None  # they define the operators
