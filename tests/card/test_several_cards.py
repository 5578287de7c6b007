"""Several cards in one process: each has an allocator, a context and libraries of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vramcast
from tests.card.scripts import runner
from vramcast.memory import Prediction, predict
from vramcast.memory.several_cards import traces_of_cards
from vramcast.trace import StepTrace

cuda = torch.cuda
BATCH, WIDTH = 512, 1024


def first_part() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))


def second_part() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, 10))


def by_hand(first: str, second: str, steps: int = 3) -> None:
    """A model whose parts lie on two cards, with an optimizer for each: so that they may be trained alone, too."""
    head, tail = first_part().to(first), second_part().to(second)
    optimizers = [torch.optim.AdamW(part.parameters()) for part in (head, tail)]
    for _ in range(steps):
        x = torch.randn(BATCH, WIDTH, device=first)
        out = tail(head(x).to(second))
        out.square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def run(program: Callable[[], object], cards: int = 2, gpu: str = "h100", limit: int | None = None) -> Prediction:
    with vramcast.virtual_gpu(gpu, cards=cards, limit_bytes=limit) as card:
        program()
    return predict(card.trace())


class Arrives(torch.autograd.Function):
    """A tensor that comes from elsewhere, and whose gradient goes there."""

    @staticmethod
    def forward(ctx: Any, somewhere: torch.Tensor) -> torch.Tensor:
        return torch.empty(BATCH, WIDTH, device="cuda")

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


def test_each_card_takes_what_its_part_takes_alone() -> None:
    """The second card sees one tensor come, and its gradient go."""

    def alone() -> None:
        tail = second_part().cuda()
        optimizer = torch.optim.AdamW(tail.parameters())
        for _ in range(3):
            out = tail(Arrives.apply(torch.ones(1).requires_grad_()))
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    together = run(lambda: by_hand("cuda:0", "cuda:1"))
    single = run(alone, cards=1)
    second = together.cards[1]
    assert [use.card for use in together.cards] == [0, 1] and not single.cards
    assert second.peak_reserved_bytes == single.peak_reserved_bytes
    assert second.peak_allocated_bytes == single.peak_allocated_bytes
    assert second.device_bytes == single.device_bytes


def test_the_cards_may_be_swapped() -> None:
    one, other = run(lambda: by_hand("cuda:0", "cuda:1")), run(lambda: by_hand("cuda:1", "cuda:0"))
    assert [use.peak_reserved_bytes for use in one.cards] == [use.peak_reserved_bytes for use in other.cards[::-1]]


def test_gradients_lie_where_their_parameters_do() -> None:
    def program() -> None:
        head, tail = nn.Linear(8, 8, device="cuda:0"), nn.Linear(8, 8, device="cuda:1")
        y = tail(head(torch.ones(4, 8, device="cuda:0")).to("cuda:1", torch.float64).float())
        y.sum().backward()
        assert head.weight.grad is not None and tail.weight.grad is not None
        assert (head.weight.grad.device.index, tail.weight.grad.device.index) == (0, 1)
        assert y.get_device() == 1 and y.device == torch.device("cuda", 1)
        assert torch.zeros_like(y).device.index == 1 and y.new_ones(3).device.index == 1
        assert torch.tensor([1.0], device="cuda:1").device.index == 1

    run(program)


def test_the_program_asks_each_card_for_its_own() -> None:
    def program() -> None:
        assert cuda.device_count() == 3 and cuda.current_device() == 0
        torch.empty(1 << 20, device="cuda:0")
        kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda:2")
        assert cuda.memory_allocated(2) == kept.nbytes and cuda.memory_allocated() == cuda.memory_allocated(1) == 0
        assert cuda.max_memory_allocated(0) == 4 << 20
        assert cuda.mem_get_info(1)[0] == cuda.mem_get_info(1)[1] > cuda.mem_get_info(2)[0]
        with cuda.device(1):
            assert cuda.current_device() == 1 and torch.empty(1, device="cuda").device.index == 1
        assert cuda.current_device() == 0
        cuda.set_device(2)
        assert torch.empty(1).cuda().device.index == 2
        assert cuda.Stream().device.index == 2 and cuda.Stream(device=1).device.index == 1
        with cuda.stream(cuda.Stream(device=1)):
            assert cuda.current_device() == 1
        assert cuda.current_device() == 2

    run(program, cards=3)


def test_tensors_of_two_cards_do_not_meet() -> None:
    def program() -> None:
        a, b = torch.ones(4, device="cuda:0"), torch.ones(4, device="cuda:1")
        with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
            _ = a + b
        a.copy_(b)
        assert (a + b.to("cuda:0")).device.index == 0

    run(program)


def test_one_runs_out_and_the_answer_says_which() -> None:
    def program() -> None:
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")
        with pytest.raises(torch.OutOfMemoryError, match=r"GPU 1 \(virtual"):
            torch.empty(3 << 30, dtype=torch.uint8, device="cuda:1")

    with vramcast.virtual_gpu("h100", cards=2, limit_bytes=2 << 30) as card:
        kept = [torch.empty(1 << 20, device=f"cuda:{number}") for number in range(2)]
        program()
        del kept
    card.end_at_last_refusal()
    found = predict(card.trace())
    assert not found.fits and found.card == 1 and found.out_of_memory is not None
    assert [use.fits for use in found.cards] == [True, False]
    assert "cuda:1" in str(found).splitlines()[0]


def test_a_run_on_fewer_cards_leaves_no_streams_to_the_next() -> None:
    """torch keeps the streams that scatter copies on in a list of as many as there were cards."""

    def scattered() -> None:
        cards = list(range(cuda.device_count()))
        parts = nn.parallel.scatter(torch.randn(len(cards), 8), cards)
        assert [part.get_device() for part in parts] == cards

    for cards in (1, 3):
        run(scattered, cards=cards)


def test_data_parallel_replicates_scatters_and_gathers() -> None:
    """10 MiB of parameters go together, as broadcast_coalesced has it; the replicas' gradients come back summed."""
    seen = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(1024, 4096, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.get_device() == self.inner.weight.get_device() == cuda.current_device()
            seen.append((x.get_device(), len(x)))
            return self.inner(x)

    def program() -> None:
        net = nn.DataParallel(Net().cuda())
        out = net(torch.randn(10, 1024))
        assert out.shape == (10, 4096) and out.get_device() == 0
        weights, row, workspace = 16 << 20, 1024 * 4, 16 << 20
        assert cuda.memory_allocated(1) == weights + 4 * row + workspace
        assert cuda.memory_allocated(2) == weights + 2 * row + workspace
        out.sum().backward()
        assert net.module.inner.weight.grad.get_device() == 0

    found = run(program, cards=3)
    assert seen == [(0, 4), (1, 4), (2, 2)] and len(found.cards) == 3


def test_a_saved_trace_keeps_its_cards(tmp_path: Path) -> None:
    path = tmp_path / "two.trace"
    with vramcast.virtual_gpu("h100", cards=2) as card:
        by_hand("cuda:0", "cuda:1")
    card.trace().save(path)
    again = StepTrace.load(path)
    assert again.cards == card.trace().cards
    assert predict(again).cards == predict(card.trace()).cards
    assert [part.card for part in traces_of_cards(again)] == [0, 1]


def test_a_batch_that_parameters_on_the_host_made_is_scattered(tmp_path: Path) -> None:
    """DeepSDF: latent vectors are an embedding on the host, the decoder is a DataParallel."""
    prediction = runner(tmp_path)(
        """
        import torch
        from torch import nn
        decoder = nn.DataParallel(nn.Linear(8, 1).cuda())
        codes = nn.Embedding(10, 4)
        optimizer = torch.optim.Adam([*decoder.parameters(), *codes.parameters()])
        for _ in range(3):
            optimizer.zero_grad()
            decoder(torch.cat([codes(torch.arange(6)), torch.randn(6, 4)], dim=1)).mean().backward()
            assert codes.weight.grad.device.type == "cpu"
            optimizer.step()
        """
    )
    assert prediction.steps == 3


def test_a_subclass_is_scattered_as_a_plain_tensor() -> None:
    """BigGAN's latent vectors know how they are drawn; what C++ makes of a part of them does not."""

    class Drawn(torch.Tensor):
        def to(self, *args: object, **kwargs: object) -> torch.Tensor:
            raise AssertionError("the program's own method is not called for a part")

    def program() -> None:
        net = nn.DataParallel(nn.Linear(8, 2).cuda())
        assert type(net(torch.randn(6, 8, device="cuda").as_subclass(Drawn))) is torch.Tensor

    run(program, cards=1)
