"""The modes that make a thread see the card: PyTorch keeps them by thread, so each thread gets its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from vramcast.card.dispatch import tensor_answers  # noqa: F401  (importing registers its handlers)
from vramcast.card.dispatch.functions import FunctionMode
from vramcast.card.dispatch.self_check import dispatch_mode

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches
    from vramcast.card.dispatch.ledger import Ledger


class Modes(threading.local):
    """This thread's pair of modes; the books behind them are shared."""

    def __init__(self, ledger: Ledger, machine: Machine) -> None:
        self.dispatch = dispatch_mode()(ledger, machine)
        self.functions = FunctionMode(self.dispatch)

    @contextmanager
    def current(self) -> Iterator[None]:
        with self.dispatch, self.functions:
            yield


def thread_with_modes(patches: Patches, enter: Callable[[], AbstractContextManager[None]]) -> None:
    """Threads started from now on run inside `enter()`."""
    original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def _bootstrap_inner(thread: Any) -> None:
        with enter():
            original(thread)

    patches.set(threading.Thread, "_bootstrap_inner", _bootstrap_inner)
