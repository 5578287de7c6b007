"""Values that the user gave for reads in certain lines, in place of what would be assumed there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from vramcast.base.assumptions import Assumption
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
        if not self._assumptions:
            return None
        where = caller()
        for number, assumption in enumerate(self._assumptions):
            if assumption.holds_at(where):
                self._used.add(number)
                content = self._content(assumption, tensor)
                given(tensor, content)
                return content
        return None

    def _content(self, assumption: Assumption, tensor: torch.Tensor) -> torch.Tensor:
        try:
            values = torch.tensor(assumption.value, device="cpu")
        except (ValueError, RuntimeError, OverflowError):  # rows of different lengths; a number that is too large
            raise self._refuse(f"--assume {assumption}: {assumption.value} are not the contents of a tensor") from None
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


def _same_file(assumption: Assumption, where: str) -> bool:
    file, _, line = where.rpartition(":")
    return line.isdecimal() and Assumption(assumption.file, int(line), assumption.value).holds_at(f"{file}:{line}")
