"""As in flash-attn."""

from vramcast.card.stand_ins.kernels.rotary import apply_rotary

__all__ = ["apply_rotary"]
