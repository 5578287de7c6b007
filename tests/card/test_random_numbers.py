"""Under a seed, the host draws the same numbers beside a virtual card as beside a real one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import vramcast
from vramcast.card.values import mersenne_twister


def _of(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.data


ON_THE_HOST: dict[str, Callable[[], object]] = {
    "linear": lambda: nn.Linear(700, 300),
    "a few weights": lambda: nn.Linear(3, 2),
    "convolution": lambda: nn.Conv2d(3, 64, 7),
    "embedding": lambda: nn.Embedding(1000, 37),
    "LSTM": lambda: nn.LSTM(30, 40),
    "attention": lambda: nn.MultiheadAttention(64, 4),
    "truncated normal": lambda: nn.init.trunc_normal_(nn.Linear(700, 30).weight),
    "normal, not in blocks of 16": lambda: nn.init.normal_(nn.Linear(701, 31).weight),
    "normal, more than a chunk": lambda: nn.init.normal_(nn.Linear(1001, 1003).weight),
    "normal, 15 of them": lambda: nn.init.normal_(nn.Linear(5, 3).weight),
    "orthogonal": lambda: nn.init.orthogonal_(nn.Linear(70, 31).weight),
    "bfloat16": lambda: nn.init.normal_(nn.Linear(301, 103, dtype=torch.bfloat16).weight),
    "float64": lambda: nn.init.normal_(nn.Linear(301, 103, dtype=torch.float64).weight),
    "transposed": lambda: nn.init.normal_(nn.Linear(301, 103).weight.t()),
    "exponential": lambda: _of(nn.Linear(301, 103).weight).exponential_(),
    "made of random numbers": lambda: nn.Parameter(torch.randn(500, 300)),
}


def _next_draw(action: Callable[[], object]) -> int:
    torch.manual_seed(3)
    action()
    return int(torch.randint(0, 10**9, (1,)).item())


@pytest.mark.parametrize("action", ON_THE_HOST.values(), ids=list(ON_THE_HOST))
def test_weights_without_data_take_their_numbers(action: Callable[[], object]) -> None:
    real = _next_draw(action)
    with vramcast.virtual_gpu("h200"):
        assert _next_draw(action) == real


def test_the_card_takes_none_of_the_hosts() -> None:
    def on_the_card() -> None:
        x = torch.randn(4, 700, device="cuda")
        torch.randperm(10, device="cuda")
        torch.empty(7, device="cuda").uniform_()
        nn.functional.dropout(x)
        x.softmax(-1).multinomial(2)
        (x @ torch.randn(700, 900_000, device="cuda")).argmax(-1)

    real = _next_draw(lambda: None)
    with vramcast.virtual_gpu("h200"):
        assert _next_draw(on_the_card) == real


def test_the_cards_generator_takes_its_own_state_back() -> None:
    """As Megatron-LM does it: the state of `torch.cuda.get_rng_state` into `default_generators`."""
    with vramcast.virtual_gpu("h100"):
        generator = torch.cuda.default_generators[0]
        state = torch.cuda.get_rng_state()
        assert generator.get_state().shape == state.shape == (16,)
        generator.set_state(state)


@pytest.mark.parametrize("drawn_before", [0, 7, 623, 624])
def test_the_hosts_generator_jumps_over_numbers(monkeypatch: pytest.MonkeyPatch, drawn_before: int) -> None:
    generator = torch.Generator().manual_seed(5)
    torch.empty(drawn_before, dtype=torch.uint8).random_(generator=generator)
    before = generator.get_state()
    for words in (624, 100_003):
        generator.set_state(before)
        torch.empty(words, dtype=torch.uint8).random_(generator=generator)
        real = torch.rand(700, generator=generator)
        generator.set_state(before)
        monkeypatch.setattr(mersenne_twister, "_LARGE", 0)
        mersenne_twister.skip(generator, words)
        assert torch.rand(700, generator=generator).equal(real)


def test_weights_owe_nothing_once_the_host_is_seeded() -> None:
    with vramcast.virtual_gpu("h200"):
        torch.manual_seed(3)
        nn.Linear(700, 300)
        torch.manual_seed(3)
        after = torch.rand(3)
        state = torch.get_rng_state()
        nn.Linear(700, 300)
        torch.set_rng_state(state)
        assert _next_draw(lambda: None) == _next_draw(lambda: torch.manual_seed(3))
    assert after.equal(torch.rand(3, generator=torch.Generator().manual_seed(3)))
