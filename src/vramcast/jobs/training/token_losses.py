"""Losses of language models that compare texts: by the probabilities of their tokens (DPO, ORPO, KTO, GRPO), or by the
scores that a reward model gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from vramcast.base.errors import UsageError

_BETA = 0.1
"""Takes no memory."""
_CLIPPED = 0.2
TOKENS = "input_ids"
"""The input whose tokens are meant."""


def token_log_probabilities(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Row by row, as TRL's selective_log_softmax: in fp32 without a copy of the logits, in half precision with one."""
    index = tokens.unsqueeze(-1)
    if logits.dtype in (torch.float32, torch.float64):
        chosen = torch.gather(logits, dim=-1, index=index)
        return (chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in logits]).unsqueeze(-1)).squeeze(-1)
    rows = [F.log_softmax(row, dim=-1).gather(dim=-1, index=one) for row, one in zip(logits, index, strict=True)]
    return torch.stack(rows).squeeze(-1)


def preference(logits: torch.Tensor, reference: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
    """DPO's sigmoid loss: the first half of the batch was chosen, the second rejected. Without a reference, its
    probabilities are known beforehand."""
    chosen, rejected = token_log_probabilities(logits[:, :-1], tokens[:, 1:]).sum(dim=1).chunk(2)
    margin = chosen - rejected
    if reference is not None:
        with torch.no_grad():
            known = token_log_probabilities(reference[:, :-1], tokens[:, 1:]).sum(dim=1)
            known_chosen, known_rejected = known.chunk(2)
        margin = margin - (known_chosen - known_rejected)
    return -F.logsigmoid(_BETA * margin).mean()


def policy(logits: torch.Tensor, reference: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
    """GRPO's clipped loss over the tokens that the logits are of, all but the last; with the entropy that TRL logs."""
    length = logits.shape[1] - 1
    now = token_log_probabilities(logits[:, :-1], tokens[:, -length:])
    with torch.no_grad():
        _entropy(logits[:, :-1])
        known = None if reference is None else token_log_probabilities(reference[:, :-1], tokens[:, -length:])
    ratio = torch.exp(now - now.detach())
    advantages = torch.ones(len(tokens), 1, device=tokens.device)
    loss = -torch.min(ratio * advantages, torch.clamp(ratio, 1 - _CLIPPED, 1 + _CLIPPED) * advantages)
    if known is not None:
        loss = loss + _BETA * (torch.exp(known - now) - (known - now) - 1)
    return loss.mean()


def _entropy(logits: torch.Tensor, rows: int = 128) -> None:
    """A piece at a time, as TRL's entropy_from_logits."""
    for piece in logits.reshape(-1, logits.shape[-1]).split(rows):
        probabilities = F.log_softmax(piece, dim=-1)
        -(torch.exp(probabilities) * probabilities).sum(-1)


def likelihood(logits: torch.Tensor, reference: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of the chosen half, which ORPO and CPO add to what they compare: of a copy, as TRL has it."""
    texts = len(tokens) // 2
    chosen = logits[:texts, :-1].contiguous()
    return F.cross_entropy(chosen.view(-1, chosen.shape[-1]), tokens[:texts, 1:].reshape(-1))


def desirability(logits: torch.Tensor, reference: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
    """KTO: each text is wanted or not, with nothing to compare it with but the reference."""
    now = token_log_probabilities(logits[:, :-1], tokens[:, 1:]).sum(dim=1)
    if reference is not None:
        with torch.no_grad():
            known = token_log_probabilities(reference[:, :-1], tokens[:, 1:]).sum(dim=1)
        now = now - known
    return (1 - torch.sigmoid(_BETA * now)).mean()


def ranking(scores: torch.Tensor, reference: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
    """A reward model's: the chosen half shall score higher than the rejected one."""
    chosen, rejected = scores.squeeze(-1).chunk(2)
    return -F.logsigmoid(chosen - rejected).mean()


KINDS = {
    "preference": preference, "likelihood": likelihood, "desirability": desirability, "policy": policy,
    "ranking": ranking,
}  # fmt: skip
_SCORES = ("ranking",)
"""Those that compare one number a text."""


def token_loss(
    kind: str, prediction: torch.Tensor, target: torch.Tensor | None, values: Mapping[str, Any], key: str
) -> torch.Tensor:
    tokens = values.get(TOKENS)
    if not isinstance(tokens, torch.Tensor) or prediction.dim() != (2 if kind in _SCORES else 3):
        what = "one score for each text" if kind in _SCORES else "logits for its tokens"
        raise UsageError(f"{key}: kind: {kind} is for a language model that is given {TOKENS} and returns {what}")
    return KINDS[kind](prediction, target, tokens)
