"""A second card is asked for where there is one: as on a machine with one H200."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpu")
cuda = torch.cuda


def entered(context: AbstractContextManager[object]) -> None:
    with context:
        torch.empty(4, device="cuda")


@pytest.mark.parametrize(
    "use",
    [
        lambda: entered(cuda.device(1)),
        lambda: entered(cuda.device("cuda:1")),
        lambda: entered(cuda.device(torch.device("cuda", 1))),
        lambda: cuda.set_device(1),
        lambda: cuda.set_device("cuda:1"),
        lambda: torch.empty(4, device="cuda:1"),
        lambda: torch.empty(4, device=1),
        lambda: torch.empty_like(torch.ones(4), device="cuda:1"),
        lambda: torch.tensor([1.0], device=torch.device("cuda", 1)),
        lambda: torch.ones(4, device="cuda").new_tensor([1.0], device="cuda:1"),
        lambda: torch.ones(4, device="cuda").to("cuda:1"),
        lambda: torch.ones(4).cuda(1),
        lambda: nn.Linear(2, 2).cuda(1),
        lambda: nn.Linear(2, 2, device="cuda:1"),
        lambda: torch.UntypedStorage(4, device="cuda:1"),
        lambda: cuda.synchronize(1),
        lambda: cuda.mem_get_info(1),
        lambda: cuda.Stream(device=1),
        lambda: cuda.Stream("cuda:1"),
        lambda: torch.accelerator.set_device_index(1),
    ],
)
def test_the_driver_knows_no_such_card(use: Callable[[], object]) -> None:
    before = cuda.memory_allocated()
    with pytest.raises(getattr(torch, "AcceleratorError", RuntimeError), match="CUDA error: invalid device ordinal"):
        use()
    assert cuda.memory_allocated() == before


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: cuda.get_device_properties(1), AssertionError, "Invalid device id"),
        (lambda: cuda.get_device_name("cuda:1"), AssertionError, "Invalid device id"),
        (lambda: cuda.get_device_capability(1), AssertionError, "Invalid device id"),
        (lambda: nn.DataParallel(nn.Linear(2, 2).cuda(), device_ids=[0, 1]), AssertionError, "Invalid device id"),
        (lambda: cuda.can_device_access_peer(0, 1), AssertionError, "Invalid peer device id"),
        (lambda: cuda.current_stream(1), RuntimeError, r"Device index value 1 is out of index range \[0, 1\)"),
        (lambda: cuda.memory_allocated(1), RuntimeError, "Invalid device argument 1"),
        (lambda: cuda.max_memory_allocated(device=1), RuntimeError, "Invalid device argument 1"),
        (lambda: cuda.set_per_process_memory_fraction(0.5, 1), RuntimeError, "did you call init"),
        (lambda: cuda.get_rng_state(1), IndexError, "tuple index out of range"),
        (lambda: cuda.set_device("cpu"), ValueError, "Expected a cuda device, but got: cpu"),
    ],
)
def test_torch_knows_no_such_card(use: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use()


@pytest.mark.parametrize("device", [None, 0, "cuda", "cuda:0", torch.device("cuda"), -1])
def test_every_name_of_the_card_there_is(device: object) -> None:
    with cuda.device(device):  # type: ignore[arg-type]
        assert torch.empty(4, device="cuda").device == torch.device("cuda", 0)
    with cuda.device_of(torch.ones(1)), cuda.device_of(torch.ones(1, device="cuda")):
        assert cuda.current_device() == 0
