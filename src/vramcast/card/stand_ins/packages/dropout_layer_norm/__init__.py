"""An extension of flash-attn's csrc folder."""

from vramcast.card.stand_ins.kernels.flash_extensions import dropout_add_ln_bwd, dropout_add_ln_fwd

__all__ = ["dropout_add_ln_bwd", "dropout_add_ln_fwd"]
