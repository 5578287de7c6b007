"""Which experts a token goes to, and the loss that balances them (`router.cpp`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.kernels.transformer_engine.launches import launch

_BITS = 1
"""Format of a map of a bit for each expert, instead of a byte."""


def _map(logits: Tensor, format: int) -> Tensor:
    experts = logits.shape[-1]
    if format == _BITS:
        return logits.new_empty((*logits.shape[:-1], -(-experts // 8)), dtype=torch.uint8)
    return logits.new_empty(logits.shape, dtype=torch.bool)


def fused_topk_with_score_function_fwd(
    logits: Tensor, topk: int, use_pre_softmax: bool, num_groups: Any, group_topk: Any, scaling_factor: Any,
    score_function: str, expert_bias: Any, routing_map_format: int = 0, topk_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    probabilities = logits.new_empty(logits.shape)
    routing = _map(logits, int(routing_map_format)) if topk_indices is None else topk_indices
    kept = logits.new_empty(logits.shape, dtype=torch.float32)
    launch([logits], [probabilities, routing, kept])
    return probabilities, routing, kept


def fused_topk_with_score_function_bwd(*args: Any) -> Tensor | None:
    """The gradient of the logits is given, after that of the probabilities; older versions make it."""
    tensors = [each for each in args if isinstance(each, Tensor)]
    made = None if len(tensors) > 3 else tensors[2].new_empty(tensors[2].shape)
    launch(tensors[:3], [tensors[3] if made is None else made])
    return made


def fused_score_for_moe_aux_loss_fwd(
    logits: Tensor, topk: int, score_function: str, routing_map_format: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    scores = logits.new_empty(logits.shape, dtype=torch.float32)
    routing = _map(logits, int(routing_map_format))
    kept = logits.new_empty(logits.shape, dtype=torch.float32)
    launch([logits], [scores, routing, kept])
    return scores, routing, kept


def fused_score_for_moe_aux_loss_bwd(*args: Any) -> Tensor | None:
    tensors = [each for each in args if isinstance(each, Tensor)]
    made = None if len(tensors) > 2 else tensors[1].new_empty(tensors[1].shape)
    launch(tensors[:2], [tensors[2] if made is None else made])
    return made


def fused_moe_aux_loss_fwd(probabilities: Tensor, tokens_per_expert: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    loss, constants = probabilities.new_empty(()), probabilities.new_empty(2, dtype=torch.float32)
    launch([probabilities, tokens_per_expert], [loss, constants])
    return loss, constants


fused_moe_aux_loss_fwd_graph_safe = fused_moe_aux_loss_fwd


def fused_moe_aux_loss_bwd(constants: Tensor, tokens_per_expert: Tensor, rows: int, columns: int, grad: Tensor) -> Any:
    out = grad.new_empty((rows, columns))
    launch([constants, tokens_per_expert, grad], [out])
    return out
