"""The torch that is installed here, and the cuDNN that it runs with on a card."""

from __future__ import annotations

import functools

import torch

from vramcast.base.errors import CannotPredict
from vramcast.base.torch_versions import CUDNN_OF_WHEEL, NEWEST, version_of, why_not

_reason = why_not(torch.__version__)
if _reason is not None:
    raise CannotPredict(_reason)

INSTALLED = version_of(torch.__version__)


@functools.cache
def cudnn_version() -> int:
    """The version as cuDNN writes it (91002 is 9.10.2); for a CPU build, that of the wheel that a machine with a card
    would have."""
    if torch.version.cuda is not None and not torch.version.hip:
        version = torch.backends.cudnn.version()
        if version:
            return int(version)
    return CUDNN_OF_WHEEL[min(INSTALLED, NEWEST)]
