"""Notes every op with its arguments as the program issues it: what the time of a step is worked out from.

On the hot path, so the text of a call is made once; afterwards the call is found by shapes, strides, dtypes and plain
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from vramcast.card.choices import tf32
from vramcast.card.device.containers import all_of
from vramcast.card.dispatch.python_calls import PythonCalls
from vramcast.card.dispatch.storages import HOST, block_of
from vramcast.trace.arguments import describe_arguments
from vramcast.trace.calls import (
    AUTOCAST,
    BACKWARD,
    BACKWARD_END,
    COMMUNICATION,
    COMPILED,
    COMPILED_GRAPH,
    ENGINE,
    GRAD,
    ITERATION,
    LOADING,
    MARKS,
    OPTIMIZER,
    OPTIMIZER_END,
    PYTHON,
    RECOMPUTED,
    REPLAY,
    REPLAYED,
    STREAM,
    OpCalls,
)

if TYPE_CHECKING:
    from vramcast.card.dispatch.known_calls import KnownCall
    from vramcast.card.dispatch.ledger import Ledger
    from vramcast.card.dispatch.position import Position

_NO_WORKERS = (
    "a DataLoader has no workers, so the training process loads every batch itself: the time of a step leaves that out"
)
_Tensor = torch.Tensor
_strided = torch.strided
_grad_enabled = torch.is_grad_enabled
_CARD = "cuda:0"
_TO_COPY = "aten._to_copy.default"
_PINNED = "vramcast_pinned"
"""On the storage of what a loader would have pinned."""
_PHASES = (BACKWARD, BACKWARD_END, OPTIMIZER, OPTIMIZER_END)
_FEWEST_CALLS = 16
"""Python calls are noted once there are so many, which take about as long as an op, and where a phase ends."""


class OpLog:
    """One instance per virtual GPU."""

    def __init__(self, ledger: Ledger, position: Position) -> None:
        self._ledger = ledger
        self._position = position
        self._log = ledger.builder.calls
        self._append = self._log.append
        self._count_events = ledger.builder.count_events
        self._autocast = False
        self._compiled = 0
        self._loading = 0
        self.python = PythonCalls()
        self.on = True
        """Steps repeat each other, so a run of known length need only be logged in its last one."""
        self._asked_for = True
        """Ops are wanted, and not only noted aside."""
        self._kept_from: int | None = None
        """Of the rows noted aside, the first that somebody asked for."""
        self._follows_streams = False
        self._stream = 0

    def ask(self, wanted: bool) -> bool:
        """Note ops from here on, or no more; whether they were asked for until now."""
        before, self._asked_for = self._asked_for, wanted
        if not self._log.is_aside:
            self.on = wanted
        elif wanted and self._kept_from is None:
            self._kept_from = self._log.n_rows
        return before

    def start(self) -> None:
        self.ask(True)
        self.python.count = 0
        self.python.start()

    def open_aside(self) -> None:
        """Note ops for the card's own use, also where nobody asked for them yet."""
        self._log.open_aside()
        self._kept_from = 0 if self._asked_for else None
        if not self.on:
            self.on = True
            self.python.start()

    def noted_aside(self) -> OpCalls:
        return self._log.build()

    @property
    def n_rows(self) -> int:
        return self._log.n_rows

    def close_aside(self) -> None:
        """What nobody asked for is forgotten."""
        self.on = self._asked_for
        self._log.close_aside(self._log.n_rows if self._kept_from is None else self._kept_from)
        self._kept_from = None

    def number(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> int:
        """Taken before the op runs: it may change the shapes it was called with."""
        if known is not None and known.number is not None:
            return known.number
        try:
            text = describe_arguments(args, kwargs, _place)
        except RuntimeError:  # a parameter of a lazy module has no shape yet
            text = ""
        op = str(func)
        if op == _TO_COPY and _is_pinned(args[0]):
            text += ", pinned=True"
        number = self._log.add_distinct((op, text), op, text)
        if known is not None:
            known.number = number
        return number

    def note(self, number: int, args: Sequence[Any]) -> None:
        """The op is done: where the program is now, it was while it ran."""
        ledger, position = self._ledger, self._position
        flags = COMPILED if self._compiled else GRAD if _grad_enabled() and _wants_grad(args) else 0
        if self._autocast:
            flags |= AUTOCAST
        flags |= self._loading
        if position.backward_depth:
            flags |= ENGINE | RECOMPUTED if position.in_module else ENGINE
        if self._follows_streams and ledger.stream != self._stream:
            self._note_stream()
        if self.python.count >= _FEWEST_CALLS and not self._loading:
            self._note_python()
        self._append(number, ledger.module, ledger.phase, flags, self._count_events())

    @contextmanager
    def instead(self, op: str, args: tuple[Any, ...]) -> Iterator[None]:
        """What runs inside stands for one op of the card's, which has no meta kernel."""
        if not self.on:
            yield
            return
        self.on = False
        try:
            yield
        finally:
            self.on = True
        with torch._C.DisableTorchFunction():
            text = describe_arguments(args, {}, _place)
        self.note(self._log.add_distinct((op, text), op, text), args)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """What runs inside is noted as something else."""
        before, self.on = self.on, False
        try:
            yield
        finally:
            self.on = before

    @contextmanager
    def in_compiled_graph(self, inputs: int) -> Iterator[None]:
        """Inside, code that Inductor wrote calls the ops."""
        self.mark(COMPILED_GRAPH, str(inputs))
        self._compiled += 1
        try:
            yield
        finally:
            self._compiled -= 1

    def while_loading(self, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`load`, which makes a batch: what it does on the host is no part of the step (docs/timing.md)."""

        def __next__(iterator: Any) -> Any:
            if isinstance(iterator, _SingleProcessDataLoaderIter):
                self._ledger.builder.note("data", _NO_WORKERS, None)
            before, self._loading = self._loading, LOADING
            called = self.python.count
            try:
                batch = load(iterator)
            finally:
                self._loading, self.python.count = before, called
            if getattr(iterator, "_pin_memory", False):
                for tensor in all_of(_Tensor, batch):
                    if not tensor.is_meta and tensor.layout is _strided:
                        setattr(tensor.untyped_storage(), _PINNED, True)
            return batch

        return __next__

    def begin_recording(self) -> tuple[int, bool]:
        """Ops are noted until `end_recording`, to be repeated in every replay."""
        before, self.on = self.on, True
        return self._log.n_rows, before

    def end_recording(self, begun: tuple[int, bool]) -> list[int]:
        """The ops since then. Where a whole step was recorded, what cuts it into phases is a part of them."""
        row, self.on = begun
        recorded = self._log.since(row)
        by_mark = {number: op for (op, _), number in self._log.by_text.items() if op in MARKS}
        marks = {by_mark[number] for number in recorded if number in by_mark}
        kept = _PHASES if OPTIMIZER_END in marks else ()
        return [number for number in recorded if number not in by_mark or by_mark[number] in kept]

    def replay(self, recorded: Sequence[int]) -> None:
        """A CUDA graph runs these again."""
        if not self.on:
            return
        self.mark(REPLAY)
        ledger = self._ledger
        flags = REPLAYED | (ENGINE if self._position.backward_depth else 0)
        for number in recorded:
            self._append(number, ledger.module, ledger.phase, flags, ledger.builder.n_events)

    def communicate(self, arguments: str) -> None:
        """A collective, or a copy to another card, runs on the current stream."""
        self.follow_streams()
        if self._ledger.stream != self._stream:
            self._note_stream()
        self.mark(COMMUNICATION, arguments)

    def follow_streams(self) -> None:
        """From now on streams and events are noted too: the program communicates, or uses several cards."""
        self._follows_streams = True
        self._ledger.timeline.note = self.mark

    def _note_stream(self) -> None:
        self._stream = self._ledger.stream
        self.mark(STREAM, str(self._stream))

    def mark(self, name: str, arguments: str = "") -> None:
        """Something that cuts a step, or costs the host time, without being an op."""
        if not self.on:
            return
        # Below the dispatcher's autocast it always reads as off.
        self._autocast = torch.is_autocast_enabled("cuda")
        if name == ITERATION:
            self._stream = 0  # a step begins on the default stream
        if name in (OPTIMIZER, ITERATION) or not self._log.settings:
            self._log.settings |= _settings()
        if self.python.count and name in _PHASES and not self._loading:
            self._note_python()
        ledger, position = self._ledger, self._position
        flags = (ENGINE | RECOMPUTED if position.in_module else ENGINE) if position.backward_depth else 0
        flags |= self._loading
        self._log.mark(name, arguments, ledger.module, ledger.phase, flags, self._count_events())

    def _note_python(self) -> None:
        called, self.python.count = self.python.count, 0
        self.mark(PYTHON, str(called))


def _settings() -> dict[str, bool]:
    return {
        "matmul tf32": tf32.in_matmul(),
        "cudnn tf32": tf32.in_cudnn(),
        "cudnn benchmark": torch.backends.cudnn.benchmark,
    }


def _wants_grad(values: Sequence[Any]) -> bool:
    """Autograd records an op only where one of its tensors leads to something that is trained."""
    for value in values:
        if isinstance(value, _Tensor):
            if value.requires_grad:
                return True
        elif isinstance(value, (list, tuple)) and _wants_grad(value):
            return True
    return False


def _is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.layout is _strided and not tensor.is_meta and hasattr(tensor.untyped_storage(), _PINNED)


def _is_on_host(tensor: torch.Tensor) -> bool:
    block = block_of(tensor)
    return block is not None and block.device == HOST


def _place(device: torch.device, tensor: torch.Tensor | None) -> str:
    """Where it would be: data-free tensors stand for the card's, or for large ones in the computer's memory."""
    if device.type != "meta":
        return str(device)
    return "cpu" if tensor is not None and tensor.layout is _strided and _is_on_host(tensor) else _CARD
