"""The host's random numbers come as on a real machine, so that a script that sets a seed shuffles and augments alike.

Weights that carry no data are not drawn, but they take their numbers from the host's generator all the same: before
somebody looks at what comes after them, which most programs never do. What is drawn on the card takes none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from vramcast.base.torch_versions import NORMAL_OF_HALF_FILLS_ITS_LAST_BLOCK, TRUNCATED_NORMAL_DRAWS_AGAIN
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.dispatch.storages import HOST, block_of, known_values
from vramcast.card.values import mersenne_twister

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches

_MOST_DRAWN = 1 << 28
"""Numbers that are drawn in place of weights in one process where they cannot be skipped, which takes about a
second. With more, later draws differ from those of a real machine."""
_BLOCK = 16
"""Normal numbers are drawn so many at a time (normal_fill in DistributionTemplates.h)."""
_CHUNK = _BLOCK << 14


class HostDraws:
    """Draws what initialising weights without data would have drawn, once another draw on the host depends on it."""

    def __init__(self) -> None:
        self._owed: list[tuple[int, Callable[[], object] | None]] = []
        """How many numbers, and what draws them; None where so many words of the generator are dropped."""
        self._state = self._while_owing = torch.empty(0)
        """The host's generator before them, and what it is set to until they are drawn."""
        self._drawn = 0
        self.nobody_looks = False
        """No code of the user's runs: nothing is drawn, and nothing depends on it."""

    def skip(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`func` has written random numbers into its first argument, which has no data."""
        if self.nobody_looks or any(isinstance(arg, torch.Tensor) for arg in args[1:]):
            return
        target = args[0]
        count, dtype, in_one = target.numel(), target.dtype, target.is_contiguous()
        words = _words(func, count, dtype, in_one)
        if words is not None:
            self._owe(words, None, kwargs.get("generator"))
        else:
            self._owe(count, lambda: _draw(func, count, dtype, in_one, args[1:], kwargs), kwargs.get("generator"))

    def _owe(self, count: int, draw: Callable[[], object] | None, generator: torch.Generator | None) -> None:
        if generator is not None:  # one of the program's own
            self._pay(count, draw, generator)
            return
        if not self._owed:
            with _on_the_host():
                self._state = torch.default_generator.get_state()
                torch.rand(1)  # so that seeding it anew shows, even with the seed that it had
                self._while_owing = torch.default_generator.get_state()
        if draw is None and self._owed and self._owed[-1][1] is None:
            count += self._owed.pop()[0]
        self._owed.append((count, draw))

    def settle(self) -> None:
        """The host's generator is about to be used."""
        if not self._owed:
            return
        owed, self._owed = self._owed, []
        generator = torch.default_generator
        with _on_the_host():
            if torch.equal(generator.get_state(), self._while_owing):  # else it was seeded: they were drawn before that
                generator.set_state(self._state)
                for count, draw in owed:
                    self._pay(count, draw, generator)

    def _pay(self, count: int, draw: Callable[[], object] | None, generator: torch.Generator) -> None:
        if draw is None:
            mersenne_twister.skip(generator, count)
        elif self._drawn + count <= _MOST_DRAWN:
            self._drawn += count
            draw()

    def install(self, put: Patches) -> None:
        for owner in (torch, torch.random):
            put.set(owner, "get_rng_state", self._settled(torch.random.get_rng_state))
        if INSTALLED >= TRUNCATED_NORMAL_DRAWS_AGAIN:
            put.set(nn.init, "_no_grad_trunc_normal_", self._truncated_normal(nn.init._no_grad_trunc_normal_))

    def _settled(self, get_rng_state: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        @functools.wraps(get_rng_state)
        def settled() -> torch.Tensor:
            self.settle()
            return get_rng_state()

        return settled

    def _truncated_normal(self, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """How many numbers are drawn depends on the numbers: they are drawn for real, and dropped."""

        def _no_grad_trunc_normal_(
            tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
        ) -> torch.Tensor:
            with torch._C.DisableTorchFunction():
                block = block_of(tensor)
            if block is None or block.device != HOST or known_values(tensor) is not None:
                return original(tensor, mean, std, a, b, generator=generator)
            shape, dtype = tensor.shape, tensor.dtype

            def draw() -> object:
                return original(torch.empty(shape, dtype=dtype, device="cpu"), mean, std, a, b, generator=generator)

            if not self.nobody_looks:
                self._owe(tensor.numel(), draw, generator)
            return tensor

        return _no_grad_trunc_normal_


def _words(func: Any, count: int, dtype: torch.dtype, in_one: bool) -> int | None:
    """How many words of the generator an op takes; None where only drawing tells (DistributionTemplates.h)."""
    each = 2 if dtype == torch.float64 else 1
    if func is torch.ops.aten.uniform_.default:
        return each * count
    if func is torch.ops.aten.normal_.default and in_one and count >= _BLOCK:
        if count % _BLOCK and dtype.itemsize == 2 and INSTALLED >= NORMAL_OF_HALF_FILLS_ITS_LAST_BLOCK:
            return None
        return each * (count + (_BLOCK if count % _BLOCK else 0))  # the last block is drawn again where it is not whole
    return None


def _draw(
    func: Any, count: int, dtype: torch.dtype, in_one: bool, parameters: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Draw `count` numbers and drop them. For a tensor that is not contiguous they are drawn one by one."""
    scratch = torch.empty(2 * min(count, 2 * _CHUNK), dtype=dtype, device="cpu")
    scratch = scratch[: scratch.numel() // 2] if in_one else scratch[::2]
    while count:
        taken = count if count <= 2 * _CHUNK else _CHUNK
        func(scratch[:taken], *parameters, **kwargs)
        count -= taken


@contextmanager
def _on_the_host() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


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
