"""As in flash-attn."""

from vramcast.card.stand_ins.kernels.cross_entropy import CrossEntropyLoss

__all__ = ["CrossEntropyLoss"]
