"""The host's random numbers come as on a real machine, so that a script that sets a seed shuffles and augments alike.

Weights that carry no data are not drawn, but they take their numbers from the host's generator all the same; what is
drawn on the card takes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vramcast.base.torch_versions import TRUNCATED_NORMAL_DRAWS_AGAIN
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.dispatch.storages import HOST, block_of, known_values

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches

_MOST_DRAWN = 1 << 28
"""Numbers that are drawn in place of weights in one process, which takes about a second. With more, later draws differ
from those of a real machine."""
_CHUNK = 1 << 18
"""A multiple of 16, the block in which torch draws normal numbers (normal_fill in DistributionTemplates.h)."""


class HostDraws:
    """Draws what initialising weights without data would have drawn."""

    def __init__(self) -> None:
        self._drawn = 0
        self.nobody_looks = False
        """No code of the user's runs: nothing is drawn, and nothing depends on it."""

    def skip(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`func` has written random numbers into its first argument, which has no data."""
        target = args[0]
        count = target.numel()
        if (
            self.nobody_looks
            or self._drawn + count > _MOST_DRAWN
            or any(isinstance(arg, torch.Tensor) for arg in args[1:])
        ):
            return
        self._drawn += count
        scratch = torch.empty(2 * min(count, 2 * _CHUNK), dtype=target.dtype, device="cpu")
        # Numbers for a tensor that is not contiguous are drawn one by one.
        scratch = scratch[: scratch.numel() // 2] if target.is_contiguous() else scratch[::2]
        while count:
            taken = count if count <= 2 * _CHUNK else _CHUNK
            func(scratch[:taken], *args[1:], **kwargs)
            count -= taken

    def install(self, put: Patches) -> None:
        if INSTALLED >= TRUNCATED_NORMAL_DRAWS_AGAIN:
            put.set(nn.init, "_no_grad_trunc_normal_", self._truncated_normal(nn.init._no_grad_trunc_normal_))

    def _truncated_normal(self, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """How many numbers are drawn depends on the numbers: they are drawn for real, and dropped."""

        def _no_grad_trunc_normal_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            with torch._C.DisableTorchFunction():
                block = block_of(tensor)
            is_empty = block is not None and block.device == HOST and known_values(tensor) is None
            if not is_empty or self._drawn + tensor.numel() > _MOST_DRAWN:
                return original(tensor, *args, **kwargs)
            if self.nobody_looks:
                return tensor
            self._drawn += tensor.numel()
            original(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), *args, **kwargs)
            return tensor

        return _no_grad_trunc_normal_


class CardDraws:
    """Draws in place of the card, from a generator of its own."""

    def __init__(self) -> None:
        self._state = torch.Generator().manual_seed(0).get_state()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """What is drawn in here leaves the host's generator as it is."""
        generator = torch.default_generator
        of_host = generator.get_state()
        generator.set_state(self._state)
        try:
            yield
        finally:
            self._state = generator.get_state()
            generator.set_state(of_host)


def draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags
