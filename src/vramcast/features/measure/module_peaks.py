"""The highest allocated memory during the forward pass of each module, over one step on the real GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


def module_peaks(step: Callable[[], object], *, depth: int = 3) -> dict[str, int]:
    """Run `step` once more and give the peaks by dotted module name, at most `depth` parts long."""
    watcher = _Watcher(depth)
    handles = [
        register_module_forward_pre_hook(watcher.enter),
        register_module_forward_hook(watcher.leave, always_call=True),
    ]
    try:
        torch.cuda.reset_peak_memory_stats()
        step()
    finally:
        for handle in handles:
            handle.remove()
    return watcher.peaks


class _Watcher:
    """The allocator keeps one peak; starting it anew at every border and passing it upwards gives one a module."""

    def __init__(self, depth: int) -> None:
        self.peaks: dict[str, int] = {}
        self._depth = depth
        self._names: dict[int, str] = {}
        self._stack: list[int] = []
        self._process = os.getpid()

    def enter(self, module: torch.nn.Module, *_: Any) -> None:
        if self._is_elsewhere():
            return
        if not self._stack:
            root = type(module).__name__
            self._names = {id(m): f"{root}.{name}" if name else root for name, m in module.named_modules()}
        self._take()
        self._stack.append(0)

    def leave(self, module: torch.nn.Module, *_: Any) -> None:
        if self._is_elsewhere() or not self._stack:
            return
        self._take()
        peak = self._stack.pop()
        if self._stack:
            self._stack[-1] = max(self._stack[-1], peak)
        name = self._names.get(id(module))
        if name is not None and name.count(".") < self._depth:
            self.peaks[name] = max(self.peaks.get(name, 0), peak)

    def _take(self) -> None:
        if self._stack:
            self._stack[-1] = max(self._stack[-1], torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    def _is_elsewhere(self) -> bool:
        """In backward, where a checkpointed block runs its forward again, or in a worker of a loader, which is forked
        from this process and has no card."""
        return torch._C._current_graph_task_id() != -1 or os.getpid() != self._process
