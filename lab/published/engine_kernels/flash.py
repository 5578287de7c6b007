"""The package flash-attn, with PyTorch's operators of the same kernels."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

VERSION = "2.7.4"
"""In NVIDIA's containers from 25.01 on."""


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Any = None,
    causal: bool = False,
    **rest: Any,
) -> torch.Tensor:
    heads_first = [each.transpose(1, 2) for each in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = functional.scaled_dot_product_attention(
            *heads_first, dropout_p=dropout_p, is_causal=causal, enable_gqa=q.shape[2] != k.shape[2]
        )
    return out.transpose(1, 2)


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **settings: Any) -> tuple[Any, ...]:
    """(output, log-sum-exp, probabilities, random state), as `_flash_attn_forward` returns them."""
    out, lse, state, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, bool(settings.get("causal", False)), False
    )
    return out, lse, None, state


def backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    *rest: Any,
    **settings: Any,
) -> Any:
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    torch.ops.aten._flash_attention_backward(
        gradient, q, k, v, out, lse, None, None, q.shape[1], k.shape[1], 0.0, False, state, state
    )
    return lse


def _missing(*args: Any, **settings: Any) -> Any:
    raise NotImplementedError("flash-attn for texts of several lengths is not written for the virtual card")


def install() -> None:
    interface = {
        "flash_attn_func": flash_attn_func,
        "flash_attn_varlen_func": _missing,
        "_flash_attn_forward": forward,
        "_flash_attn_backward": backward,
        "_flash_attn_varlen_forward": _missing,
        "_flash_attn_varlen_backward": _missing,
        "flash_attn_unpadded_func": _missing,
    }
    contents = {
        "flash_attn": {"__version__": VERSION, "flash_attn_func": flash_attn_func, "flash_attn_varlen_func": _missing},
        "flash_attn.flash_attn_interface": interface,
        "flash_attn_2_cuda": {"varlen_bwd": _missing},
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__dict__.update(content)
        sys.modules[name] = module
    importlib.metadata.version = _with_flash(importlib.metadata.version)


def _with_flash(version: Callable[[str], str]) -> Callable[[str], str]:
    def find(name: str) -> str:
        return VERSION if name in ("flash-attn", "flash_attn") else version(name)

    return find
