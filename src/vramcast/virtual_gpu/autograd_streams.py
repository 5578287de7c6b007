"""Backward functions run on the stream that their forward functions ran on.

Autograd remembers the stream of every node when it is made. It sets that stream while the node runs, and tells the
allocator of gradients that pass from one stream to another (engine.cpp, input_buffer.cpp). Tensors without data have no
streams, so nodes that are made on another stream than the default one are marked here, and say themselves where they
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual_gpu.storages import block_of

if TYPE_CHECKING:
    from vramcast.virtual_gpu.ledger import Ledger

_STREAM = "vramcast_stream"
_LEAF = (1 << 64) - 1
"""The sequence number of nodes that accumulate gradients."""


def run_on_side_stream(ledger: Ledger, function: Callable[[], Any]) -> Any:
    """What the function adds to the graph runs backward on the stream that is current now."""
    before = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    result = function()
    for tensor in _tensors(result):
        if tensor.grad_fn is not None:
            _mark(ledger, tensor.grad_fn, before)
    return result


def _tensors(result: Any) -> Iterable[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _tensors(item)


def _mark(ledger: Ledger, node: Any, since: int) -> None:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        number = node._sequence_nr()
        if number < since or _STREAM in node.metadata:
            continue
        node.metadata[_STREAM] = ledger.stream
        node.register_prehook(_enter(ledger, ledger.stream))
        if number != _LEAF:
            waiting += [after for after, _ in node.next_functions if after is not None]


def _enter(ledger: Ledger, stream: int) -> Callable[[Any], None]:
    def enter(gradients: tuple[Any, ...]) -> None:
        before = ledger.stream
        _used_on(ledger, gradients, stream)
        ledger.stream = stream
        node: Any = torch._C._current_autograd_node()

        def leave(made: tuple[Any, ...], _: Any) -> None:
            handle.remove()
            ledger.stream = before
            for gradient, (after, _) in zip(made or (), node.next_functions, strict=False):
                if after is not None:
                    _used_on(ledger, (gradient,), after.metadata.get(_STREAM, 0))

        # Registered now, so that it runs after all hooks of the program, which see the node's stream.
        handle = node.register_hook(leave)

    return enter


def _used_on(ledger: Ledger, gradients: tuple[Any, ...], stream: int) -> None:
    for gradient in gradients:
        block = block_of(gradient) if isinstance(gradient, torch.Tensor) else None
        if block is not None and block.ledger is ledger and block.block_id >= 0:
            ledger.record_stream(block, stream)
