"""As in apex."""

from vramcast.card.stand_ins.kernels.apex_kernels import FusedAdam, FusedSGD

__all__ = ["FusedAdam", "FusedSGD"]
