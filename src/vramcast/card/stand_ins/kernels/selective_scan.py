"""mamba-ssm's selective scan (csrc/selective_scan/selective_scan.cpp, ops/selective_scan_interface.py); version
2.3.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.amp.autocast_mode import custom_bwd, custom_fwd

from vramcast.card.stand_ins.kernels import causal_convolution
from vramcast.card.stand_ins.ops import NotInStandIn, dense_rows, op

_CHUNK = 2048
"""States are kept at the end of this many steps."""


@op(
    "mamba_ssm::selective_scan_fwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
    "Tensor? delta_bias, bool delta_softplus) -> (Tensor, Tensor, Tensor)"
)
def run_forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    gated = u.new_empty(0) if z is None else torch.empty_like(z)
    out = torch.empty_like(delta)
    batch, channels, length = u.shape
    states = u.new_empty((batch, channels, -(-length // _CHUNK), 2 * A.shape[1]), dtype=A.dtype)
    return out, states, gated


@op(
    "mamba_ssm::selective_scan_bwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
    "Tensor? delta_bias, Tensor dout, Tensor? x, Tensor? out, Tensor(a!)? dz, bool delta_softplus, "
    "bool recompute_out_z) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def run_backward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, dout: Tensor, x: Tensor | None, out: Tensor | None, dz: Tensor | None,
    delta_softplus: bool, recompute_out_z: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    none = u.new_empty(0)
    own_dz = torch.empty_like(z) if z is not None and dz is None else none
    gated = torch.empty_like(out) if out is not None and recompute_out_z else none
    du, ddelta, dA = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(A)
    sums = [torch.zeros_like(t, dtype=torch.float32) if t.dim() >= 3 else torch.zeros_like(t) for t in (B, C)]
    dD = none if D is None else torch.zeros_like(D)
    dbias = none if delta_bias is None else torch.zeros_like(delta_bias)
    return du, ddelta, dA, sums[0].to(B.dtype), sums[1].to(C.dtype), dD, dbias, own_dz, gated


def fwd(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool,
) -> list[Tensor]:  # fmt: skip
    """selective_scan_cuda.fwd."""
    out, states, gated = torch.ops.mamba_ssm.selective_scan_fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    return [out, states] if z is None else [out, states, gated]


def bwd(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, dout: Tensor, x: Tensor | None, out: Tensor | None, dz: Tensor | None,
    delta_softplus: bool, recompute_out_z: bool,
) -> list[Any]:  # fmt: skip
    """selective_scan_cuda.bwd."""
    *results, own_dz, gated = torch.ops.mamba_ssm.selective_scan_bwd(
        u, delta, A, B, C, D, z, delta_bias, dout, x, out, dz, delta_softplus, recompute_out_z
    )
    results += [] if z is None else [own_dz if dz is None else dz]
    return [*results, *([gated] if recompute_out_z else [])]


class SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        delta_bias: Tensor | None, delta_softplus: bool, return_last_state: bool,
    ) -> Any:  # fmt: skip
        u, delta, B, C = (dense_rows(tensor) for tensor in (u, delta, B, C))
        z = None if z is None else dense_rows(z)
        ctx.without_groups = B.dim() == 3, C.dim() == 3
        B, C = (tensor.unsqueeze(1) if tensor.dim() == 3 else tensor for tensor in (B, C))
        out, states, *gated = fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
        ctx.delta_softplus = delta_softplus
        last = states[:, :, -1, 1::2]
        ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, states, None if z is None else out)
        result = out if z is None else gated[0]
        return (result, last) if return_last_state else result

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *args: Any) -> Any:
        u, delta, A, B, C, D, z, delta_bias, states, out = ctx.saved_tensors
        du, ddelta, dA, dB, dC, dD, dbias, *dz = bwd(
            u, delta, A, B, C, D, z, delta_bias, dense_rows(dout), states, out, None, ctx.delta_softplus, False
        )
        dB, dC = (
            grad.squeeze(1) if squeezed else grad for grad, squeezed in zip((dB, dC), ctx.without_groups, strict=True)
        )
        return (
            du, ddelta, dA, dB, dC, None if D is None else dD, dz[0] if dz else None,
            None if delta_bias is None else dbias, None, None,
        )  # fmt: skip


def selective_scan_fn(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, delta_softplus: bool = False, return_last_state: bool = False,
) -> Any:  # fmt: skip
    apply: Callable[..., Any] = SelectiveScan.apply
    return apply(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)


def _rows(x: Tensor) -> Tensor:
    """(batch, channels, length) as (batch * length, channels)."""
    return x.transpose(1, 2).reshape(-1, x.shape[1])


class MambaInner(torch.autograd.Function):
    """A whole layer after its first projection; the convolution and delta are computed again in the backward pass."""

    @staticmethod
    @custom_fwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any, xz: Tensor, conv_weight: Tensor, conv_bias: Tensor | None, x_proj: Tensor, delta_proj: Tensor,
        out_proj: Tensor, out_bias: Tensor | None, A: Tensor, D: Tensor | None, delta_bias: Tensor | None,
    ) -> Any:  # fmt: skip
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            x_proj, delta_proj, out_proj = (weight.to(dtype) for weight in (x_proj, delta_proj, out_proj))
            out_bias = None if out_bias is None else out_bias.to(dtype)
        xz = dense_rows(xz)
        batch, _, length = xz.shape
        rank, states = delta_proj.shape[1], A.shape[-1]
        x, z = xz.chunk(2, dim=1)
        conv_weight = conv_weight.squeeze(1)
        convolved = causal_convolution.forward(x, conv_weight, conv_bias, None, None, None, True)
        projected = F.linear(_rows(convolved), x_proj)
        delta = _delta(delta_proj, projected[:, :rank], batch)
        B = projected[:, rank : rank + states].unflatten(0, (batch, length)).transpose(1, 2).unsqueeze(1).contiguous()
        C = projected[:, -states:].unflatten(0, (batch, length)).transpose(1, 2).unsqueeze(1).contiguous()
        out, kept, gated = fwd(convolved, delta, A, B, C, D, z, delta_bias, True)
        del convolved, delta
        ctx.has_out_bias = out_bias is not None
        ctx.save_for_backward(
            xz, conv_weight, conv_bias, projected, x_proj, delta_proj, out_proj, A, B, C, D, delta_bias, kept, out
        )
        return F.linear(gated.transpose(1, 2), out_proj, out_bias)

    @staticmethod
    @custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dout: Tensor) -> Any:
        (xz, conv_weight, conv_bias, projected, x_proj, delta_proj, out_proj, A, B, C, D, delta_bias, kept,
         out) = ctx.saved_tensors  # fmt: skip
        batch, _, length = xz.shape
        rank, states = delta_proj.shape[1], A.shape[-1]
        x, z = xz.chunk(2, dim=1)
        dout = dense_rows(dout)
        convolved = causal_convolution.forward(x, conv_weight, conv_bias, None, None, None, True)
        delta = _delta(delta_proj, projected[:, :rank], batch)
        dxz = torch.empty_like(xz)
        dx, dz = dxz.chunk(2, dim=1)
        columns = dout.flatten(0, 1).t()
        dgated = (out_proj.t() @ columns).unflatten(1, (batch, length)).transpose(0, 1)
        dconv, ddelta, dA, dB, dC, dD, dbias, dz, gated = bwd(
            convolved, delta, A, B, C, D, z, delta_bias, dgated, kept, out, dz, True, True
        )
        dout_proj = torch.einsum("eB,dB->ed", columns, gated.transpose(0, 1).flatten(1))
        dout_bias = columns.sum(dim=(0, 1)) if ctx.has_out_bias else None
        dprojected = torch.empty_like(projected)
        dprojected[:, rank : rank + states] = dB.squeeze(1).transpose(1, 2).flatten(0, 1).contiguous()
        dprojected[:, -states:] = dC.squeeze(1).transpose(1, 2).flatten(0, 1).contiguous()
        del dB, dC
        rows = ddelta.transpose(0, 1).flatten(1)
        ddelta_proj = torch.einsum("dB,Br->dr", rows, projected[:, :rank])
        dprojected[:, :rank] = torch.einsum("dB,dr->Br", rows, delta_proj)
        dconv_rows = dconv.transpose(0, 1).flatten(1)
        dx_proj = torch.einsum("Br,Bd->rd", dprojected, _rows(convolved))
        dconv_rows = torch.addmm(dconv_rows, x_proj.t(), dprojected.t(), out=dconv_rows)
        dconv = dconv_rows.unflatten(1, (batch, length)).transpose(0, 1)
        _, dweight, dconv_bias, _ = causal_convolution.backward(
            x, conv_weight, conv_bias, dconv, None, None, None, dx, False, True
        )
        return (
            dxz, dweight.unsqueeze(1), dconv_bias, dx_proj, ddelta_proj, dout_proj, dout_bias, dA,
            None if D is None else dD, None if delta_bias is None else dbias,
        )  # fmt: skip


def _delta(weight: Tensor, rows: Tensor, batch: int) -> Tensor:
    delta: Tensor = (weight @ rows.t()).unflatten(1, (batch, -1)).transpose(0, 1)
    return delta


def mamba_inner_fn(
    xz: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, x_proj_weight: Tensor, delta_proj_weight: Tensor,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, A: Tensor, B: Tensor | None = None,
    C: Tensor | None = None, D: Tensor | None = None, delta_bias: Tensor | None = None, *args: Any, **options: Any,
) -> Tensor:  # fmt: skip
    if B is not None or C is not None:
        raise NotInStandIn("mamba_inner_fn with B or C that do not depend on the input")
    apply: Callable[..., Tensor] = MambaInner.apply
    return apply(
        xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, D,
        delta_bias,
    )  # fmt: skip
