"""Values that the user gave for reads in certain lines, in place of what would be assumed there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from vramcast.base.assumptions import Assumption, Value
from vramcast.base.errors import UsageError
from vramcast.card.dispatch.unknown import caller
from vramcast.card.values.guesses import given


class GivenValues:
    def __init__(self, assumptions: Sequence[Assumption] = ()) -> None:
        self._assumptions = assumptions
        self._used: set[int] = set()
        self.refused: list[UsageError] = []
        """Values that are not of the shape of what is read: the program may have swallowed the error."""

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The contents of a tensor that is read in a line for which a value was given."""
        found = self._of_this_line()
        if found is None:
            return None
        number, assumption = found
        self._used.add(number)
        content = self._content(assumption, tensor)
        given(tensor, content)
        return content

    def fitting(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The same for a mask, indices, or what else an op looks at by itself. The line may read other tensors too: a
        value of another type or length is theirs."""
        found = self._of_this_line()
        if found is None:
            return None
        value = _as_tensor(found[1].value)
        if value is None or _kind(value.dtype) != _kind(tensor.dtype) or value.numel() not in (1, tensor.numel()):
            return None
        return self.read(tensor)

    def truth(self) -> bool | None:
        """What a comparison of whole tensors gives in a line for which true or false was given."""
        found = self._of_this_line()
        if found is None or not isinstance(found[1].value, bool):
            return None
        self._used.add(found[0])
        return found[1].value

    def _of_this_line(self) -> tuple[int, Assumption] | None:
        """What was given for the line that the program is at, with its number."""
        if not self._assumptions:
            return None
        where = caller()
        return next(((number, one) for number, one in enumerate(self._assumptions) if one.holds_at(where)), None)

    def _content(self, assumption: Assumption, tensor: torch.Tensor) -> torch.Tensor:
        values = _as_tensor(assumption.value)
        if values is None:
            raise self._refuse(f"--assume {assumption}: {assumption.value} are not the contents of a tensor")
        if values.dim() == 0:
            return torch.full(tensor.shape, assumption.value, dtype=tensor.dtype, device="cpu")  # type: ignore[arg-type]
        if values.numel() != tensor.numel():
            raise self._refuse(
                f"--assume {assumption}: {values.numel()} values are given; the tensor that is read there has "
                f"{tensor.numel()}, of shape {list(tensor.shape)}"
            )
        return values.reshape(tensor.shape).to(tensor.dtype)

    def _refuse(self, message: str) -> UsageError:
        self.refused.append(UsageError(message))
        return self.refused[-1]

    def unused(self, lines_that_read: Iterable[str]) -> list[str]:
        """What to say of each line that has read no tensor of the card; `lines_that_read`: those that have."""
        texts = []
        for number, assumption in enumerate(self._assumptions):
            if number not in self._used:
                others = [where for where in lines_that_read if _same_file(assumption, where)]
                lines_read = f"; lines of it that did: {', '.join(where.rpartition(':')[2] for where in others)}"
                texts.append(f"{assumption} read no value of the card{lines_read if others else ''}")
        return texts


def _as_tensor(value: Value) -> torch.Tensor | None:
    try:
        return torch.tensor(value, device="cpu")
    except (ValueError, RuntimeError, OverflowError):  # rows of different lengths; a number that is too large
        return None


def _kind(dtype: torch.dtype) -> str:
    return "truth" if dtype == torch.bool else "number" if dtype.is_floating_point else "whole number"


def _same_file(assumption: Assumption, where: str) -> bool:
    file, _, line = where.rpartition(":")
    return line.isdecimal() and Assumption(assumption.file, int(line), assumption.value).holds_at(f"{file}:{line}")
