"""What code writes reaches the disk here: the canaries that these tests look for would be lost in the overlay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vramcast import overlay


@pytest.fixture(autouse=True)
def no_overlay() -> Iterator[None]:
    with overlay.written_through():
        yield
