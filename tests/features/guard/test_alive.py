"""From a snapshot and its owners to the account, without a card."""

from __future__ import annotations

import pytest

from vramcast.memory.alive import LiveBlock, Owner, Variable, account_of_alive

BLOCKS = [
    LiveBlock(address=1000, size_bytes=512, requested_bytes=400),
    LiveBlock(address=2000, size_bytes=512, requested_bytes=512),
    LiveBlock(address=4000, size_bytes=1024, requested_bytes=1024, where="train.py:7"),
    LiveBlock(address=6000, size_bytes=1024, requested_bytes=1024),
]
OWNERS = [
    Owner(1000, "weights", "Net.layer.weight", "float32[10, 10]"),
    Owner(2100, "gradients", "Net.layer.weight"),  # a view into a bucket
    Owner(2200, "gradients", "Net.layer.bias"),
    Owner(9000, "weights", "Net.on_another_card"),
    Owner(3000, "weights", "Net.behind_a_block"),
]


def test_parts_add_up_and_owners_are_found_inside_blocks() -> None:
    found = account_of_alive(
        BLOCKS, OWNERS, [Variable(4000, "logits", "train.py:9", "float32[256]")],
        reserved_bytes=4096, tried_bytes=2048, total_bytes=10_000, free_bytes=5_000, limit_bytes=4096, steps=3,
    )  # fmt: skip
    assert {row.name: row.alive_bytes for row in found.parts} == {
        "weights": 400,
        "gradients": 512,
        "activations and other": 2048,
        "rounding": 112,
        "fragmentation": 1024,
        "other processes and outside PyTorch's allocator": 904,
    }
    assert sum(row.alive_bytes for row in found.parts) == 5_000
    assert all(row.predicted_bytes is None for row in found.parts) and found.predicted_at == ""
    assert [(row.name, row.alive_bytes) for row in found.modules] == [("Net.layer", 912)]
    assert found.allocated_bytes == 3072 and found.unowned_bytes == 2048 and found.matched_bytes == 0
    logits = next(one for one in found.largest if one.variable)
    assert (logits.variable, logits.shape, logits.where) == ("logits (train.py:9)", "float32[256]", "train.py:7")


@pytest.mark.parametrize(
    ("process_bytes", "expected"),
    [
        (4500, {"outside PyTorch's allocator": 404, "other processes": 500}),
        # Of another process with the same number, in another container.
        (1000, {"other processes and outside PyTorch's allocator": 904}),
        (9000, {"other processes and outside PyTorch's allocator": 904}),
    ],
)
def test_other_processes_on_the_card_are_not_called_ours(process_bytes: int, expected: dict[str, int]) -> None:
    found = account_of_alive(
        BLOCKS, OWNERS, reserved_bytes=4096, tried_bytes=2048, total_bytes=10_000, free_bytes=5_000,
        process_bytes=process_bytes,
    )  # fmt: skip
    parts = {row.name: row.alive_bytes for row in found.parts}
    assert {name: size for name, size in parts.items() if "other processes" in name or "outside" in name} == expected
    assert sum(parts.values()) == 5_000


def test_blocks_of_which_the_same_can_be_said_are_counted_together() -> None:
    blocks = [LiveBlock(i << 20, 1 << 20, 1 << 20) for i in range(1, 50)]
    found = account_of_alive(blocks, [], reserved_bytes=64 << 20, tried_bytes=1, total_bytes=1 << 30, free_bytes=0)
    assert [(one.count, one.size_bytes) for one in found.largest] == [(49, 1 << 20)]


def test_nothing_alive() -> None:
    found = account_of_alive([], [], reserved_bytes=0, tried_bytes=1, total_bytes=100, free_bytes=100)
    assert found.parts == () and found.largest == () and found.allocated_bytes == 0
