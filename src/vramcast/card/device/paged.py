"""Paged optimizers of bitsandbytes: state in CUDA's managed memory, which a C function hands out.

The driver keeps its pages on the card while there is room and moves them to the host when there is none, so it is
counted apart from both.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.storages import HOST
from vramcast.trace.host import PAGED

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches
    from vramcast.card.dispatch.ledger import Ledger

_LIBRARY = "bitsandbytes"


def install_for(put: Patches, ledger: Ledger, optimizer: Any) -> None:
    """Called once an optimizer of bitsandbytes is made: its managed memory comes from us."""
    functional: Any = sys.modules.get(f"{_LIBRARY}.functional")
    ours = any(kind.__module__.startswith(_LIBRARY) for kind in type(optimizer).__mro__)
    if not ours or functional is None or getattr(functional.get_paged, "vramcast", None) is ledger:
        return

    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        with (
            torch._C.DisableTorchFunction(),
            torch.utils._python_dispatch._disable_current_modes(),
            ledger.made_on_host(PAGED, "optimizer state"),
        ):
            made: Any = torch.empty(shape, dtype=dtype, device="meta")
            ledger.book(made.untyped_storage(), HOST)
        made.is_paged, made.page_deviceid = True, 0
        return made  # type: ignore[no-any-return]

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    get_paged.vramcast = ledger  # type: ignore[attr-defined]
    put.set(functional, "get_paged", get_paged)
    put.set(functional, "fill", nothing)
    put.set(functional, "prefetch_tensor", nothing)
