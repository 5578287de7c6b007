"""As in mamba-ssm, for training."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.card.stand_ins.kernels.causal_convolution import causal_conv1d_fn
from vramcast.card.stand_ins.kernels.selective_scan import mamba_inner_fn, selective_scan_fn


class Mamba(nn.Module):
    def __init__(
        self, d_model: int, d_state: int = 16, d_conv: int = 4, expand: int = 2, dt_rank: int | str = "auto",
        dt_min: float = 0.001, dt_max: float = 0.1, dt_init: str = "random", dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4, conv_bias: bool = True, bias: bool = False, use_fast_path: bool = True,
        layer_idx: int | None = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        place = {"device": device, "dtype": dtype}
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = int(expand * d_model)
        self.dt_rank = math.ceil(d_model / 16) if isinstance(dt_rank, str) else dt_rank
        self.use_fast_path, self.layer_idx, self.activation = use_fast_path, layer_idx, "silu"
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=bias, **place)
        self.conv1d = nn.Conv1d(
            self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1, bias=conv_bias, **place
        )
        self.act = nn.SiLU()
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False, **place)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner, bias=True, **place)
        decay = torch.arange(1, d_state + 1, dtype=torch.float32, device=device).expand(self.d_inner, -1).contiguous()
        self.A_log = nn.Parameter(torch.log(decay))
        self.D = nn.Parameter(torch.ones(self.d_inner, device=device))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **place)

    def forward(self, hidden_states: Tensor, inference_params: Any = None) -> Tensor:
        batch, length, _ = hidden_states.shape
        xz = (self.in_proj.weight @ hidden_states.flatten(0, 1).t()).unflatten(1, (batch, length)).transpose(0, 1)
        if self.in_proj.bias is not None:
            xz = xz + self.in_proj.bias.to(xz.dtype)[:, None]
        decay = -torch.exp(self.A_log.float())
        skip, delta_bias = self.D.float(), self.dt_proj.bias.float()
        if self.use_fast_path and inference_params is None:
            return mamba_inner_fn(
                xz, self.conv1d.weight, self.conv1d.bias, self.x_proj.weight, self.dt_proj.weight,
                self.out_proj.weight, self.out_proj.bias, decay, None, None, skip, delta_bias=delta_bias,
            )  # fmt: skip
        x, z = xz.chunk(2, dim=1)
        x = causal_conv1d_fn(x, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation=self.activation)
        projected = self.x_proj(x.transpose(1, 2).reshape(-1, self.d_inner))
        delta, B, C = projected.split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        delta = (self.dt_proj.weight @ delta.t()).unflatten(1, (batch, length)).transpose(0, 1)
        B, C = (t.unflatten(0, (batch, length)).transpose(1, 2).contiguous() for t in (B, C))
        y = selective_scan_fn(x, delta, decay, B, C, skip, z=z, delta_bias=delta_bias, delta_softplus=True)
        return self.out_proj(y.transpose(1, 2))  # type: ignore[no-any-return]
