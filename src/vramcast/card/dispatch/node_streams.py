"""The stream on which autograd runs each node: the one that was current when the forward pass made it.

Nodes are numbered as they are made, so the numbers at which the program changed its stream tell the stream of each.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch

LAST_NUMBER = 2**64 - 1
"""Nodes that add to a parameter's gradient have this number, whenever they were made."""


class NodeStreams:
    def __init__(self) -> None:
        self._numbers = [-1]
        self._streams = [0]
        self._node = -1
        self.several = False
        """Whether the program has used more than one stream."""

    def changed(self, stream: int) -> None:
        """The program makes `stream` the current one, outside a backward pass."""
        number = torch._C._autograd._get_sequence_nr()
        if self._numbers[-1] == number:
            self._streams[-1] = stream
        elif self._streams[-1] != stream:
            self._numbers.append(number)
            self._streams.append(stream)
            self.several = True

    def entered(self, node: Any) -> int | None:
        """The stream of a node that runs now; None where it is the one that was asked about before, in which the
        program may have chosen another since, or where its stream is not known."""
        number = node._sequence_nr()
        if number in (self._node, LAST_NUMBER):
            return None
        self._node = number
        return self._streams[bisect_right(self._numbers, number) - 1]

    def left(self) -> None:
        """The backward pass is over."""
        self._node = -1
