"""When the first kernels run: copies from the host and empty tensors need none."""

from __future__ import annotations

_WITHOUT_KERNEL = ("setup", "aten._to_copy", "aten.copy_", "aten.empty", "aten.new_empty", "aten.set_")


class KernelWatch:
    """Told the op of each allocation in turn, says when a kernel has run for the first time."""

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = False

    def has_run_before(self, op: str) -> bool:
        """Whether a kernel has run before `op`, whose result is being allocated."""
        if op.startswith(_WITHOUT_KERNEL):
            return False
        started, self._started = self._started, True
        return started
