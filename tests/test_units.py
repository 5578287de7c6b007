from __future__ import annotations

import pytest

from vramcast.base.units import GIB, MIB, format_gib, format_size, parse_bytes
from vramcast.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("24 gib", 24 * GIB),
        ("24G", 24 * GIB),
        ("1.5GiB", GIB + GIB // 2),
        ("24GB", 24 * 10**9),
        ("512MiB", 512 * MIB),
        ("512m", 512 * MIB),
        ("24", 24 * GIB),  # as on a card's box
        ("25769803776", 24 * GIB),
    ],
)
def test_parse_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "24 apples", "-3GiB", "0GiB", "0", "1e3", "24576"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)


def test_format() -> None:
    assert format_gib(3 * GIB // 2, 1) == "1.5 GiB"
    assert [format_size(s) for s in (12, 4096, 3 * MIB, 5 * GIB)] == ["12 B", "4.0 KiB", "3.0 MiB", "5.00 GiB"]
