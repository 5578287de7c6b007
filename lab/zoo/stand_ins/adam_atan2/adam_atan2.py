"""The optimizer is a CUDA extension that has to be built: AdamW in its place, which keeps the same states."""

from torch.optim import AdamW


class AdamATan2(AdamW):
    pass
