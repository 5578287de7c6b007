"""How long a collective takes: bytes over the slowest link of its ring, and a latency for each hop.

Inside a machine the cards' own links carry it. Between machines a ring enters and leaves each of them once for every
card that takes part, over that card's adapter.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.gpus import GpuSpec
from vramcast.gpus.networks import network_of

LINK_SHARES = {"all_reduce": 0.74, "all_gather": 0.67, "reduce_scatter": 0.67, "all_to_all": 0.60}
USUAL_LINK_SHARE = 0.7
"""Share of a card's links that large collectives reach. Measured on 8 B200 by MooreThreads/SimuMax (4dcaae5,
configs/system/b200_bf16_ceperm.json): 0.742, 0.674, 0.673 and 0.597. On 8 A100s nccl-tests are said to print 230 to
250 of 300 GB/s (docs.alayanew.com/en/docs/tech-blog/2026-05-06-nccl-tests). Measured on no pair of cards here."""
NETWORK_SHARE = 0.8
"""The same of a network's adapters: an assumption."""
START_SECONDS = 23e-6
"""From the launch of the kernel to its first byte, with the handshake of the ranks: 22 to 26 µs in the same file."""
HOP_SECONDS, NETWORK_HOP_SECONDS = 1.5e-6, 5e-6
"""Latency of a hop from card to card, and from machine to machine: assumptions. They count where messages are small."""

ROUNDS = {
    "all_reduce": 2.0,
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "all_to_all": 1.0,
    "broadcast": 1.0,
    "reduce": 1.0,
    "gather": 1.0,
    "scatter": 1.0,
}
"""How often the data goes round the ring."""
POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True, slots=True)
class Collective:
    """What is sent: `bytes` of the whole buffer, the largest of what goes in and comes out."""

    kind: str
    bytes: int
    ranks: int
    nodes: int

    def seconds(self, gpu: GpuSpec) -> float:
        if self.ranks < 2 or (self.kind not in ROUNDS and self.kind not in POINT_TO_POINT):
            return 0.0
        rate = ring_bytes_per_second(gpu, self.ranks, self.nodes, self.kind)
        if self.kind in POINT_TO_POINT:
            return START_SECONDS + self.bytes / rate
        rounds = ROUNDS[self.kind]
        hops = HOP_SECONDS * (self.ranks - self.nodes) + (NETWORK_HOP_SECONDS * self.nodes if self.nodes > 1 else 0.0)
        return START_SECONDS + rounds * ((self.ranks - 1) / self.ranks * self.bytes / rate + hops)


def ring_bytes_per_second(gpu: GpuSpec, ranks: int, nodes: int, kind: str = "") -> float:
    """What each rank sends and receives at once. Links are listed with both directions together; where none is known,
    the cards meet over PCI Express."""
    link = gpu.link_bytes_per_second / 2 if gpu.link_bytes_per_second else gpu.architecture.host_bytes_per_second
    link *= LINK_SHARES.get(kind, USUAL_LINK_SHARE)
    if nodes > 1:
        per_node = max(1, ranks // nodes)
        network = network_of(gpu.compute_capability).bytes_per_second * per_node * NETWORK_SHARE
        link = network if per_node == 1 else min(link, network)
    return link
