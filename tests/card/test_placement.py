"""Every way that PyTorch has to make a tensor on the card, or to move one there: it lies there, and is counted once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

pytestmark = pytest.mark.usefixtures("gpu")


@pytest.fixture(autouse=True)
def default_types() -> Iterator[None]:
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


def card(*values: float) -> torch.Tensor:
    return torch.tensor(values or (0.0,), device="cuda")


def layer(**options: Any) -> nn.Linear:
    return nn.Linear(2, 3, **options)


def under_default_type(make: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
        return make()

    return run


def under_default_device(make: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        with torch.device("cuda"):
            return make()

    return run


def swapping(make: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return make()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    return run


def with_values(storage: Any) -> torch.Tensor:
    return card().new_empty(0).set_(storage, 0, (3,))


WAYS: dict[str, Callable[[], torch.Tensor]] = {
    # modules
    "Module.to(device=)": lambda: layer().to(device="cuda").bias,
    "Module.to(device=, dtype=)": lambda: layer().to(device=torch.device("cuda"), dtype=torch.float16).bias,
    "Module.to(tensor)": lambda: layer().to(card()).bias,
    "Module.to(tensor=)": lambda: layer().to(tensor=card()).bias,
    "Module.to(0)": lambda: layer().to(0).bias,
    "Module.cuda(device=)": lambda: layer().cuda(device=0).bias,
    "Module.type": lambda: layer().type(torch.cuda.FloatTensor).bias,
    "Module.to_empty": lambda: layer(device="meta").to_empty(device="cuda").bias,
    "Module.to(device=) with swapped parameters": swapping(lambda: layer().to(device="cuda").bias),
    "a buffer": lambda: nn.BatchNorm1d(3).to(device="cuda").running_mean,
    "ParameterList": lambda: nn.ParameterList([nn.Parameter(torch.zeros(3))]).to(device="cuda")[0],
    "skip_init": lambda: nn.utils.skip_init(nn.Linear, 2, 3, device="cuda").bias,
    "a lazy module": lambda: _called(nn.LazyLinear(3).to(device="cuda"), torch.zeros(1, 2, device="cuda")).bias,
    "load_state_dict(assign=True)": lambda: _assigned(layer(device="meta")).bias,
    "deepcopy of a module": lambda: copy.deepcopy(layer().cuda()).bias,
    "parameter.data =": lambda: _with_data(nn.Parameter(torch.zeros(3))),
    "Parameter.to": lambda: nn.Parameter(torch.zeros(3)).to("cuda"),
    # tensors that are moved
    "type_as": lambda: torch.zeros(3).type_as(card()),
    "type_as a parameter": lambda: torch.zeros(3).type_as(layer().cuda().weight),
    "type(str)": lambda: torch.zeros(3).type("torch.cuda.FloatTensor"),
    "to(tensor)": lambda: torch.zeros(3).to(card()),
    "to(dtype=, device=)": lambda: torch.zeros(3).to(dtype=torch.float16, device="cuda"),
    "cuda(device, non_blocking)": lambda: torch.zeros(3).cuda(torch.device("cuda:0"), True),
    "to(accelerator)": lambda: torch.zeros(3).to(torch.accelerator.current_accelerator()),
    "pinned, then moved": lambda: torch.zeros(3).pin_memory().to("cuda", non_blocking=True),
    "copy_": lambda: torch.empty(3, device="cuda").copy_(torch.ones(3)),
    "pickle": lambda: pickle.loads(pickle.dumps(torch.zeros(3, device="cuda"))),
    "packed sequence": lambda: rnn.pack_padded_sequence(torch.zeros(3, 1, 1), [3]).to("cuda").data.reshape(3),
    "storage.cuda": lambda: with_values(torch.zeros(3).untyped_storage().cuda()),
    # tensors that are made
    "Tensor(list), default type": under_default_type(lambda: torch.Tensor([1, 2, 3])),
    "Tensor(sizes), default type": under_default_type(lambda: torch.Tensor(3)),
    "Tensor(array), default type": under_default_type(lambda: torch.Tensor(np.zeros(3))),
    "zeros, default type": under_default_type(lambda: torch.zeros(3)),
    "tensor(array), device context": under_default_device(lambda: torch.tensor(np.zeros(3))),
    "as_tensor, device context": under_default_device(lambda: torch.as_tensor([1.0, 2.0, 3.0])),
    "cuda.FloatTensor(array)": lambda: torch.cuda.FloatTensor(np.zeros(3, dtype=np.float32)),
    "cuda.FloatTensor(tensor)": lambda: torch.cuda.FloatTensor(torch.zeros(3)),
    "cuda.LongTensor(size)": lambda: torch.cuda.LongTensor(torch.Size([3])),
    "new(list)": lambda: card().new([1, 2, 3]),
    "new(sizes)": lambda: card().new(3),
    "new_tensor(data=)": lambda: card().new_tensor(data=[1, 2, 3]),
    "new_tensor(array)": lambda: card().new_tensor(np.zeros(3)),
    "new_ones(device=)": lambda: torch.zeros(1).new_ones(3, device="cuda"),
    "tensor of tensors": lambda: torch.tensor([card(1.0)[0], card(2.0)[0], card(3.0)[0]], device="cuda"),
    "tensor of tensors, then moved": lambda: torch.tensor([card(1.0)[0], 2, 3]).cuda(),
    "asarray(copy=)": lambda: torch.asarray([1, 2, 3], device="cuda", dtype=torch.float32, copy=True),
    "UntypedStorage": lambda: with_values(torch.UntypedStorage(12, device="cuda")),
    "TypedStorage": lambda: with_values(torch.TypedStorage(3, dtype=torch.float32, device="cuda")),
    "a window": lambda: torch.kaiser_window(3, device="cuda"),
    "normal": lambda: torch.normal(0.0, 1.0, (3,), device="cuda"),
    "randperm": lambda: torch.randperm(3, device="cuda"),
    # indexing
    "an array as index": lambda: torch.zeros(10, device="cuda")[np.array([1, 2, 3])],
    "an array as mask": lambda: torch.zeros(3, device="cuda")[np.array([True, True, True])],
    "a list as index": lambda: torch.zeros(10, device="cuda")[[1, 2, 3]],
    "a host tensor as index": lambda: torch.zeros(10, device="cuda")[torch.tensor([1, 2, 3])],
    "an array's number as index": lambda: torch.zeros(4, 3, device="cuda")[np.int64(1)],
    "an array's number as factor": lambda: np.float64(2) * torch.zeros(3, device="cuda"),
}


def _called(module: nn.Module, x: torch.Tensor) -> nn.Module:
    module(x)
    return module


def _assigned(module: nn.Module) -> nn.Module:
    values = {"weight": torch.zeros(3, 2, device="cuda"), "bias": torch.zeros(3, device="cuda")}
    module.load_state_dict(values, assign=True)
    return module


def _with_data(parameter: nn.Parameter) -> nn.Parameter:
    parameter.data = parameter.data.cuda()
    return parameter


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_it_lies_on_the_card(name: str) -> None:
    before = torch.cuda.memory_allocated()
    tensor = WAYS[name]()
    assert tensor.is_cuda and tensor.device == torch.device("cuda", 0) and tensor.shape == (3,)
    assert torch.cuda.memory_allocated() > before, "it is counted"
    storage = tensor.untyped_storage()
    assert storage.device.type == "cuda" and storage.is_cuda


def test_a_default_type_is_taken_back() -> None:
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.Tensor([1, 2]).device.type == "cpu" and torch.zeros(2).device.type == "cpu"


def test_values_of_a_tensor_of_tensors() -> None:
    assert torch.tensor([card(1.0)[0], card(2.0)[0]]).tolist() == [1.0, 2.0]
    assert torch.tensor([card(1.0, 2.0), card(3.0, 4.0)]).tolist() == [[1.0, 2.0], [3.0, 4.0]]


FROM_NUMBERS_OF_THE_CARD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "torch.Tensor": lambda number: torch.Tensor([number, 1.0]),
    "torch.FloatTensor": lambda number: torch.FloatTensor([number, 1.0]),
    "nested": lambda number: torch.Tensor([[number], [1.0]]),
    "new": lambda number: torch.zeros(2).new([number, 1.0]),
    "new of the card": lambda number: torch.zeros(2).cuda().new([number, 1.0]),
    "new_tensor": lambda number: torch.zeros(2).new_tensor([number, 1.0]),
    "new_tensor of the card": lambda number: torch.zeros(2).cuda().new_tensor([number, 1.0]),
    "by keyword": lambda number: torch.tensor(data=[number, 1.0]),
    "sparse": lambda number: torch.sparse_coo_tensor([[0, 1]], [number, 1.0], (2,)).to_dense(),
}


@pytest.mark.parametrize("name", FROM_NUMBERS_OF_THE_CARD)
def test_numbers_of_the_card_in_a_list(name: str) -> None:
    """PyTorch reads them below every mode."""
    made = FROM_NUMBERS_OF_THE_CARD[name](card(2.5)[0])
    assert made.flatten().tolist() == [2.5, 1.0]


def test_indices_in_lists_and_arrays_are_known() -> None:
    rows = torch.arange(20.0).reshape(5, 4).cuda()
    assert rows[[0, 2], 1].tolist() == [1.0, 9.0]
    assert rows[np.array([1, 2]), [0, 3]].tolist() == [4.0, 11.0]
    assert rows[[True, False, False, False, True]].shape == (2, 4)
    rows[1, sorted(np.array([2, 0]))] = -1.0
    assert rows[1].tolist() == [-1.0, 5.0, -1.0, 7.0]


def test_a_mask_of_ones_is_known_whatever_it_masks() -> None:
    unknown = layer().cuda()(card(1.0, 2.0))
    mask = torch.ones_like(unknown)
    mask[[1]] = 0
    assert mask.tolist() == [1, 0, 1] and unknown.new_full((2,), 7).tolist() == [7, 7]
    assert torch.zeros_like(unknown).sum().item() == 0


def test_weights_moved_by_keyword_are_cast_by_autocast() -> None:
    model = layer().to(device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out = model(torch.zeros(5, 2, device="cuda"))
    assert out.dtype == torch.bfloat16 and isinstance(out.sum().item(), float)


def test_values_are_read_under_a_default_device() -> None:
    torch.set_default_device("cuda")
    assert sorted(torch.randperm(5).tolist()) == [0, 1, 2, 3, 4]
    assert torch.full((3,), 2)[torch.tensor([True, False, True])].tolist() == [2, 2]
    drawn = torch.multinomial(torch.softmax(layer()(torch.randn(4, 2)), -1), 1)
    assert set(drawn.reshape(-1).tolist()) <= {0, 1, 2}
    assert torch.randn(4, 300).topk(2).indices.max().item() < 300
    assert len(torch.randn(100).relu().nonzero()) <= 100
    assert torch.randn(1 << 23).exp().sum().item() > 0


@pytest.mark.parametrize(
    ("draw", "expected", "found"),
    [
        (lambda: torch.empty(2).random_(generator=torch.Generator("cuda")), "cpu", "cuda"),
        (lambda: torch.rand(2, device="cuda", generator=torch.Generator()), "cuda", "cpu"),
        (lambda: torch.multinomial(card(0.5, 0.5), 1, generator=torch.Generator()), "cuda", "cpu"),
    ],
)
def test_a_generator_of_another_device_is_refused(draw: Callable[[], torch.Tensor], expected: str, found: str) -> None:
    with pytest.raises(RuntimeError, match=f"Expected a '{expected}' device type for generator but found '{found}'"):
        draw()


def test_a_generator_of_the_same_device_is_taken() -> None:
    assert torch.rand(2, device="cuda", generator=torch.Generator("cuda")).is_cuda
    assert torch.multinomial(card(0.5, 0.5), 1, generator=torch.Generator("cuda")).is_cuda
    assert not torch.rand(2, generator=torch.Generator()).is_cuda


def test_the_gradient_of_a_tensor_on_the_host_lies_there() -> None:
    """However large it is: what autograd hands on has data where the tensor has."""
    x = torch.randn(1024, 1024, requires_grad=True)
    (x.cuda() * 2).sum().backward()
    assert x.grad is not None and x.grad.device.type == "cpu" and not x.grad.is_meta
    assert x.grad.shape == x.shape


def test_a_tensor_is_set_to_itself_and_to_no_other_view() -> None:
    tensor = torch.ones(4, 4, device="cuda")
    assert tensor.is_set_to(tensor.view(4, 4)) and not tensor.is_set_to(tensor[:2])
    assert not tensor.is_set_to(torch.ones(4, 4, device="cuda"))


@pytest.mark.parametrize("kind", [bool, int, float, complex])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_python_type_is_a_dtype(kind: Any, device: str) -> None:
    expected = torch.empty(0, dtype=kind).dtype
    x = torch.ones(2, device=device)
    assert x.to(kind).dtype == x.to(dtype=kind).dtype == x.to("cuda", kind).dtype == expected
    assert x.to(device="cuda", dtype=kind).dtype == expected
