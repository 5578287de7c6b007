"""Gradient sync of DistributedDataParallel: buckets summed over the cards while the backward pass still runs.

DDP fills buckets in the order in which gradients become ready, starts a ring all-reduce for each as soon as it is full,
and waits for the last of them at the end of the backward pass; only what is not done by then costs time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.gpus import GpuSpec

FIRST_BUCKET_BYTES = 1 << 20
"""dist._DEFAULT_FIRST_BUCKET_BYTES: a small one, so that the first sum starts early."""
_LINK_SHARE = 0.75
"""Share of a link's rate that large all-reduces reach: an assumption, measured on no pair of cards here."""
_HOP_SECONDS = 2.5e-6
"""Latency of one hop of the ring: an assumption too. It counts only where buckets are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """How gradients are summed over several cards."""

    cards: int
    gradient_bytes: int
    bucket_bytes: int = 25 << 20


def all_reduce_seconds(size_bytes: float, cards: int, gpu: GpuSpec) -> float:
    """A ring: each card sends and receives 2 (n - 1) / n of the data, over 2 (n - 1) hops."""
    if cards < 2:
        return 0.0
    # Links are listed with both directions together. Where none is known, the cards meet over PCI Express.
    rate = gpu.link_bytes_per_second / 2 if gpu.link_bytes_per_second else gpu.architecture.host_bytes_per_second
    return 2 * (cards - 1) / cards * size_bytes / (rate * _LINK_SHARE) + 2 * (cards - 1) * _HOP_SECONDS


def exposed_seconds(
    sync: Sync, gpu: GpuSpec, ready: Sequence[tuple[float, int]], backward_start: float, backward_end: float
) -> float:
    """What is left of the sums when the backward pass is done. `ready`: when gradients of how many bytes are there;
    empty: evenly over the backward pass."""
    known = sum(size for _, size in ready)
    if known < sync.gradient_bytes / 2:
        parts = 64
        span = backward_end - backward_start
        ready = [(backward_start + span * (part + 1) / parts, sync.gradient_bytes // parts) for part in range(parts)]
    done = backward_start
    filled, capacity = 0, FIRST_BUCKET_BYTES
    last = backward_end
    for moment, size in ready:
        filled += size
        if filled >= capacity:
            done = max(done, moment) + all_reduce_seconds(filled, sync.cards, gpu)
            filled, capacity = 0, sync.bucket_bytes
    if filled:
        done = max(done, last) + all_reduce_seconds(filled, sync.cards, gpu)
    return max(0.0, done - backward_end)
