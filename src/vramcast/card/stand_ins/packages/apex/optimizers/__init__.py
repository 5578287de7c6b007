"""As in apex."""

from vramcast.card.stand_ins.kernels.apex_kernels import FusedAdagrad, FusedAdam, FusedLAMB, FusedSGD

__all__ = ["FusedAdagrad", "FusedAdam", "FusedLAMB", "FusedSGD"]
