"""As in flash-attn."""

from vramcast.card.stand_ins.kernels.cross_entropy import cross_entropy_loss

__all__ = ["cross_entropy_loss"]
