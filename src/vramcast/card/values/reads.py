"""The one way in which a program reads a tensor of the card: item(), bool(), tolist(), cpu(), numpy(), print().

Known contents are given as they are; otherwise those that follow from how the tensor was made (guesses.py), the same
each time, and the report says what was assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vramcast.card.dispatch.storages import known_values
from vramcast.card.values import checks

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine


def known(machine: Machine, tensor: torch.Tensor) -> torch.Tensor | None:
    """Contents that need not be made up: those that the user has given for this line, or those of the data."""
    machine.ledger.wait_for_stream()
    given = machine.given_values.read(tensor)
    return known_values(tensor) if given is None else given


def look(machine: Machine, tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """A CPU tensor with the contents, not to be written to, and whether they are made up."""
    content = machine.given_values.read(tensor)
    if content is not None:
        return content, True
    content = known_values(tensor)
    if content is not None:
        return content, False
    content = machine.guesses.read(tensor)
    if content is not None:
        return content, machine.guesses.made_up
    default = 0 if tensor.dtype == torch.bool else 1
    return torch.full(tensor.shape, default, dtype=tensor.dtype, device="cpu"), True


def read(machine: Machine, tensor: torch.Tensor, what: str) -> torch.Tensor:
    """The same, with a note of `what` is done where the contents are made up."""
    given = machine.given_values.read(tensor)
    content, made_up = (given, True) if given is not None else look(machine, tensor)
    if not made_up:
        return content
    assumed, decides_sizes = _in_words(content), False
    if given is None and content.dtype == torch.bool and content.numel() == 1:
        answer, assumed, decides_sizes = truth(machine, bool(content.item()))
        content = torch.full(content.shape, answer, device="cpu")
    elif given is None and content.numel() == 1 and checks.is_rounded():
        assumed += "; it is made a whole number, and sizes may depend on it (--compute-values computes it)"
        decides_sizes = True
    machine.note_unknown_read(what, assumed, decides_sizes=decides_sizes)
    return content


def truth(machine: Machine, made_up: bool) -> tuple[bool, str, bool]:
    """A made-up truth value as the program is told, the same in words, and whether the rounds of a loop depend on it:
    where the program checks it, it passes the check."""
    wanted = checks.wanted()
    if wanted is not None and wanted != made_up and machine.may_pass_check():
        return wanted, f"{wanted!r}, with which the check passes", False
    if checks.decides_rounds():
        return made_up, f"{made_up!r}; how often the loop runs depends on it (--compute-values computes it)", True
    return made_up, repr(made_up), False


def _in_words(content: torch.Tensor) -> str:
    if content.numel() == 1:
        value = content.item()
        return f"{value:.6g}" if isinstance(value, float) else repr(value)
    if content.numel() == 0 or content.is_complex() or content.dtype == torch.bool:
        return f"{content.numel()} made-up values"
    some = content.reshape(-1)[: 1 << 16].double()
    return f"numbers from {some.min().item():.3g} to {some.max().item():.3g}"
