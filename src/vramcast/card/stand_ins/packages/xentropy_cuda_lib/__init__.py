"""An extension of flash-attn's csrc folder."""

from vramcast.card.stand_ins.kernels.flash_extensions import backward, forward

__all__ = ["backward", "forward"]
