"""Marks in a script's code. Apart from the rest of the package, whose code Dynamo does not look into."""

from __future__ import annotations

from collections.abc import Callable


def recorder(seen: set[int]) -> Callable[[int], None]:
    """Remembers the marks that were passed. Where the script's code is compiled, Dynamo calls it while it traces, and
    leaves nothing of it in the compiled code (torch.compiler.assume_constant_result)."""

    def reached(mark: int) -> None:
        seen.add(mark)

    reached._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return reached
