"""How long texts are taken to be where a job does not say it. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LONGEST_ASSUMED = 2048


def longest_text(config: Mapping[str, Any]) -> int:
    """What the model's config allows, up to a length that is usual for training."""
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"):
        length = config.get(key)
        if isinstance(length, int) and length > 0:
            # RoBERTa and its kin lose the rows up to the padding token's.
            taken = int(config.get("pad_token_id") or 0) + 1 if length % 2 == 0 and length % 128 == 2 else 0
            return min(length - taken, _LONGEST_ASSUMED)
    return 512
