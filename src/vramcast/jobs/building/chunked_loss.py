"""A causal language model whose head and loss are computed piece by piece, so that not all logits are there at once."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from vramcast.base.errors import UsageError

_IGNORED = -100
"""Labels that do not count, as in transformers."""
_SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Fields of a config by which logits are changed after the head."""


def chunk_loss(key: str, model: Any, chunks: int, tokens: int | None = None, *, recompute: bool = True) -> None:
    """Replace `model.forward` by one that returns the loss alone: hidden states, then head and cross-entropy of one
    piece of the sequence after the other, each computed again in the backward pass unless `recompute` is false.
    `tokens`: how many a piece has, instead of how many pieces there are."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    base = getattr(model, "base_model", None)
    config = getattr(model, "config", None)
    if head is None or base is None or base is model or not _is_causal(model):
        raise UsageError(f"{key}: {type(model).__name__} is no causal language model of transformers: leave it out")
    scaled = next((name for name in _SCALED if getattr(config, name, None) not in (None, 1, 1.0)), None)
    if scaled is not None:
        raise UsageError(f"{key}: {type(model).__name__} changes its logits ({scaled}) after the head: leave it out")

    def piece(hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # A piece of a longer sequence is strided; computed again from a copy it would take another kernel.
        logits = head(hidden.contiguous()).float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=_IGNORED, reduction="sum")

    def forward(*args: Any, labels: torch.Tensor, **kwargs: Any) -> dict[str, torch.Tensor]:
        hidden = base(*args, **kwargs)[0]
        pieces = min(hidden.shape[1], -(-hidden.shape[:-1].numel() // tokens)) if tokens else chunks
        shifted = F.pad(labels, (0, 1), value=_IGNORED)[..., 1:]
        total: Any = sum(
            checkpoint(piece, *part, use_reentrant=False) if recompute else piece(*part)
            for part in zip(hidden.chunk(pieces, dim=1), shifted.chunk(pieces, dim=1), strict=True)
        )
        return {"loss": total / (shifted != _IGNORED).sum()}

    model.forward = functools.update_wrapper(forward, model.forward)


def _is_causal(model: nn.Module) -> bool:
    return any(kind.__name__.endswith(("ForCausalLM", "LMHeadModel")) for kind in type(model).__mro__)
