"""The watch while training runs: a cheap look at the allocator's peak now and then, and a report when memory runs out.

It never synchronizes with the card. Steps are noticed through torch's hook for all optimizers; between two looks at
least a second passes, which loses nothing, because the allocator keeps the highest value itself. An out-of-memory error
is noticed by the allocator's own observer, at the moment of the refusal, when everything is still alive.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from vramcast.base.errors import GuardWarning
from vramcast.base.shown import write_report
from vramcast.base.units import format_gib, format_size
from vramcast.card.device.context import VirtualGpu, active_card
from vramcast.features.guard.collect import collect
from vramcast.features.guard.wording import in_the_users_language
from vramcast.memory import Prediction

_SECONDS_BETWEEN_LOOKS = 1.0
_FIRST_STEPS = 3
"""Looked at one by one: optimizer state appears in the first, the peak mostly in the second or third."""
_MOST_REPORTS = 3
"""A program that catches the error and tries again with less should not fill the disk."""

_watching: list[Watch] = []
_virtual_cards: WeakSet[VirtualGpu] = WeakSet()
"""Those whose allocator reports to us."""
_real_card_reports = False
"""The real allocator keeps an observer for good, so there is one in a process."""


class Watch:
    def __init__(
        self,
        *,
        prediction: Prediction | None = None,
        device: int | None = None,
        warn_above: float = 0.9,
        report_dir: Path = Path(),
    ) -> None:
        self.prediction = prediction
        self.warn_above = warn_above
        self.report_dir = report_dir
        self.steps = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.peak_device_bytes = 0
        """What nvidia-smi would have shown at most, as far as was seen: other processes included."""
        self.warned = False
        self.reports: list[Path] = []
        """Text files, one for each out-of-memory error; a .json lies beside each."""
        self._device = device
        self._next_look = 0.0
        self._remove_hook: Callable[[], None] | None = None

    def start(self) -> None:
        if self._remove_hook is not None:
            return
        self._remove_hook = register_optimizer_step_post_hook(self._after_optimizer).remove
        _watching.append(self)
        _observe()

    def stop(self) -> None:
        if self._remove_hook is None:
            return
        self._remove_hook()
        self._remove_hook = None
        _watching.remove(self)
        self.look()

    def step(self) -> None:
        """A step has ended."""
        self.steps += 1
        if self.steps <= _FIRST_STEPS or monotonic() >= self._next_look:
            self.look()

    def look(self) -> None:
        """Read the peaks and warn, once, when the card is nearly full."""
        self._next_look = monotonic() + _SECONDS_BETWEEN_LOOKS
        if not torch.cuda.is_initialized():
            return
        _observe()
        device = torch.cuda.current_device() if self._device is None else self._device
        stats = torch.cuda.memory_stats(device)
        free, total = torch.cuda.mem_get_info(device)
        reserved = stats["reserved_bytes.all.peak"]
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, stats["allocated_bytes.all.peak"])
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
        in_use = total - free + reserved - stats["reserved_bytes.all.current"]
        self.peak_device_bytes = max(self.peak_device_bytes, in_use)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(device))
        share = max(in_use / total, reserved / allowed if allowed else 0)
        if share > self.warn_above and not self.warned:
            self.warned = True
            of = total if allowed >= total else allowed
            text = (
                f"vramcast: {share:.0%} of the memory is in use at step {self.steps}: "
                f"{format_gib(in_use if of == total else reserved)} of {format_gib(of)}"
            )
            if self.prediction is not None:
                text += f" ({format_gib(self.prediction.device_bytes)} were predicted)"
            warnings.warn(in_the_users_language(text), GuardWarning, stacklevel=2)

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.step()

    def out_of_memory(self, device: int, tried_bytes: int) -> None:
        """Write what is alive. Called inside the allocator, so it must not fail and must not ask it for memory."""
        if self._device not in (None, device) or len(self.reports) >= _MOST_REPORTS:
            return
        alive = collect(device, tried_bytes, steps=self.steps, prediction=self.prediction)
        path = write_report(alive, self.report_dir)
        self.reports.append(path)
        text = f"vramcast: the card refused {format_size(tried_bytes)}; what was alive is in {path}"
        print(in_the_users_language(text), file=sys.stderr, flush=True)


def _observe() -> None:
    """Attach to the allocator of the real card once in a process, and to that of each virtual one."""
    global _real_card_reports
    card = active_card()
    known = _real_card_reports if card is None else card in _virtual_cards
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if known or attach is None or (card is None and not torch.cuda.is_initialized()):
        return
    if card is None:
        _real_card_reports = True
    else:
        _virtual_cards.add(card)
    attach(_refused)


def _refused(device: int, tried_bytes: int, device_total_bytes: int, device_free_bytes: int) -> None:
    if not _watching:
        return
    try:
        _watching[-1].out_of_memory(device, tried_bytes)  # the innermost guard; one report is enough
    except Exception:  # the training's own error must go on
        print("vramcast: the out-of-memory report failed:", file=sys.stderr)
        traceback.print_exc()
