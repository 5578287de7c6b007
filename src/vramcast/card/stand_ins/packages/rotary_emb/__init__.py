"""An extension of flash-attn's csrc folder."""

from vramcast.card.stand_ins.kernels.flash_extensions import apply_rotary

__all__ = ["apply_rotary"]
