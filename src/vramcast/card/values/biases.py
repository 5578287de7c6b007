"""Biases that a layer was given on purpose, such as those with which a detector finds next to nothing at first.

What a layer computes is made up of small numbers around zero, as of a freshly initialised head. A bias that is far from
zero moves them: a score of sigmoid(-4.6) passes no threshold, where otherwise every box would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.card.dispatch.storages import Block, block_of

PLACES = {torch.ops.aten.convolution.default: 2, torch.ops.aten.addmm.default: 0}
"""Layers that take a bias, and the place of it among their arguments."""

_ON_PURPOSE = 1.0
"""Of a usual initialisation no bias is that far from zero."""
_MOST = 1 << 16

Content = Callable[[], torch.Tensor | None]


class Bias:
    """What it was when the layer was met first, worked out when it is asked for: training moves it, and slowly."""

    def __init__(self, content: Content) -> None:
        self._content: Content | None = content
        self._far: torch.Tensor | None = None

    def far_from_zero(self) -> torch.Tensor | None:
        """Its numbers; None for a usual one."""
        if self._content is not None:
            content, self._content = self._content(), None
            if content is not None and bool(content.abs().amax() >= _ON_PURPOSE):
                self._far = content.float()
        return self._far


class Shift:
    """What is added to a layer's numbers, by the channels of its output."""

    __slots__ = ("_bias", "_size", "_stride")

    def __init__(self, bias: Bias, out: torch.Tensor) -> None:
        self._bias, self._size, self._stride = bias, out.size(), out.stride()

    def add_to(self, numbers: torch.Tensor, generator: torch.Generator) -> None:
        """To all of the output's elements, as they lie in its storage, or to some of them."""
        bias = self._bias.far_from_zero()
        if bias is None or bias.numel() != self._size[1]:
            return
        if numbers.numel() == self._size.numel():
            numbers.as_strided(self._size, self._stride).add_(bias.view(-1, *(1 for _ in self._size[2:])))
        else:
            numbers.add_(bias[torch.randint(bias.numel(), numbers.shape, generator=generator, device="cpu")])


class Biases:
    """Of the layers met so far. `content_of`: how the content of a tensor as it is now can be had later."""

    def __init__(self, content_of: Callable[[torch.Tensor, Block], Content | None]) -> None:
        self._content_of = content_of
        self._by_block: dict[int, Bias | None] = {}

    def note(self, tensor: Any, out: torch.Tensor) -> None:
        """Called after a layer with that bias has made `out`."""
        if not isinstance(tensor, torch.Tensor) or not tensor.numel() or tensor.numel() > _MOST:
            return
        block, made = block_of(tensor), block_of(out)
        if block is None or made is None or out.numel() * out.element_size() != made.nbytes:
            return
        # Autocast has made a copy of it.
        of_weights: tuple[int, ...] = block.origin[3] if block.origin is not None else ()
        key = of_weights[0] if len(of_weights) == 1 else block.block_id
        if key not in self._by_block:
            content = self._content_of(tensor, block)
            self._by_block[key] = None if content is None else Bias(content)
        bias = self._by_block[key]
        if bias is not None:
            made.shift = Shift(bias, out)
