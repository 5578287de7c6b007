"""Attention of jagged tensors: torch.nested chooses the kernel in Python, and asks the driver which are possible."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from vramcast.card.choices.attention import efficient_takes, flash_takes
from vramcast.card.dispatch.functions import FunctionMode, handles

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches


def install(put: Patches, capability: tuple[int, int]) -> None:
    """The answers of sdp_utils.cpp for the card; torch.nested adds its own conditions to them."""
    module = importlib.import_module("torch.nested._internal.sdpa")

    def flash(params: Any, debug: bool = False) -> bool:
        q, k, v = params.query, params.key, params.value
        return all(t.dim() == 4 for t in (q, k, v)) and flash_takes(
            capability, q, k, v, params.attn_mask, params.dropout
        )

    def efficient(params: Any, debug: bool = False) -> bool:
        q, k, v = params.query, params.key, params.value
        return all(t.dim() == 4 for t in (q, k, v)) and efficient_takes(capability, q, k, v)

    put.set(module, "can_use_flash_attention", flash)
    put.set(module, "can_use_efficient_attention", efficient)
    put.set(module, "can_use_cudnn_attention", _cudnn)


def _cudnn(params: Any, debug: bool = False) -> bool:
    """torch.nested asks last for cuDNN, which takes no nested tensors (check_for_nested_inputs) unless
    TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED says so."""
    return False


@handles(scaled_dot_product_attention)
def _attention(mode: FunctionMode, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Torch's own function runs below our mode, and would see tensors without a card: autocast then does nothing."""
    query = args[0] if args else kwargs.get("query")
    if not isinstance(query, torch.Tensor) or not query.is_nested or query.layout is not torch.jagged:
        return mode.call(func, args, kwargs)
    with mode:
        return importlib.import_module("torch.nested._internal.sdpa").jagged_scaled_dot_product_attention(
            *args, **kwargs
        )
