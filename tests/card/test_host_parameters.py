"""A model built on the CPU carries no weights; everything programs do with parameters still works."""

from __future__ import annotations

import copy
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.card.reading import growth
from vramcast.card.device.context import VirtualGpu

pytestmark = pytest.mark.usefixtures("gpu")


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, width: int = 64) -> None:
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(8, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_large_parameters_take_no_ram() -> None:
    before = resident_bytes()
    model = nn.Sequential(*[nn.Linear(20_000, 20_000) for _ in range(10)])  # 16 GB
    nn.init.normal_(model[0].weight, std=0.02)
    assert model[0].weight.device.type == "cpu" and not model[0].weight.is_meta
    half = copy.deepcopy(model).half()
    assert half[3].weight.dtype == torch.float16
    assert resident_bytes() - before < 1 << 28


def test_a_parameter_that_is_moved_takes_its_size() -> None:
    layer = nn.Linear(1024, 1024, bias=False)
    assert growth(layer.cuda)[0] == 1024 * 1024 * 4
    assert growth(lambda: layer.bfloat16())[0] == -1024 * 1024 * 2, "the copy replaces the original"
    assert growth(layer.cpu)[0] == -1024 * 1024 * 2
    assert layer.weight.device.type == "cpu"
    assert growth(lambda: layer.to("cuda", torch.float32))[0] == 1024 * 1024 * 4


def test_small_parameters_keep_their_values() -> None:
    scale = nn.Parameter(torch.tensor([0.5, 2.0]))
    assert scale.tolist() == [0.5, 2.0]
    assert scale.detach().cuda().mul(2).tolist() == [1.0, 4.0]


def test_data_stays_real() -> None:
    data = torch.full((1000, 1000), 3.0)
    assert data.untyped_storage().data_ptr() != 0
    assert data.mean().item() == 3.0
    assert nn.Parameter(data).shape == data.shape
    assert data.mean().item() == 3.0


def test_an_optimizer_made_before_the_move_trains_the_moved_weights() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    model.cuda()
    train(model, optimizer)
    assert optimizer.param_groups[0]["params"][0] is model.weight
    assert optimizer.state[model.weight]["exp_avg"].is_cuda


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 64)
            self.head = nn.Linear(64, 100, bias=False)
            self.head.weight = self.embed.weight

    model = Tied()
    assert growth(model.cuda)[0] == 100 * 64 * 4
    assert model.head.weight is model.embed.weight
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embed.weight


class Tagged(nn.Parameter):
    tag: str

    def __new__(cls, data: torch.Tensor, tag: str) -> Tagged:
        made: Any = super().__new__(cls, data)
        made.tag = tag
        return made  # type: ignore[no-any-return]


class Odd(nn.Module):
    """The less usual ways to hold parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Tagged(torch.randn(64, 64), "mine")
        self.shifts = nn.ParameterList([nn.Parameter(torch.randn(64)) for _ in range(3)])
        self.named = nn.ParameterDict({"x": nn.Parameter(torch.ones(64))})
        self.register_buffer("large", torch.zeros(5000, 5000))
        self.register_buffer("positions", torch.arange(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted: torch.Tensor = x @ self.weight + sum(self.shifts) + self.named["x"]
        return shifted + self.large[0, :64] + self.positions


def test_subclasses_lists_dictionaries_and_buffers() -> None:
    before = resident_bytes()
    model = Odd()
    assert resident_bytes() - before < 1 << 27, "a buffer of 100 MB is not filled"
    model.cuda()
    assert type(model.weight) is Tagged and model.weight.tag == "mine"
    assert model.large.is_cuda and model.large.shape == (5000, 5000)
    assert model.positions.tolist() == list(range(64))
    train(model)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda layer: parametrizations.weight_norm(layer),
        lambda layer: parametrizations.spectral_norm(layer),
        lambda layer: parametrizations.orthogonal(layer),
        lambda layer: nn.utils.spectral_norm(layer),
        lambda layer: nn.utils.weight_norm(layer),
        lambda layer: parametrize.register_parametrization(layer, "weight", nn.Softplus(), unsafe=True),
    ],
)
def test_reparametrized_layers(wrap: Any) -> None:
    layer = wrap(nn.Linear(64, 64)).cuda()
    train(layer)
    assert layer.weight.is_cuda and layer.weight.shape == (64, 64)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("first", ["move", "run"])
def test_lazy_modules(first: str) -> None:
    model = nn.Sequential(nn.LazyLinear(128), nn.ReLU(), nn.LazyLinear(64))
    if first == "run":
        model(torch.randn(2, 64))
        assert model[0].weight.device.type == "cpu"
    model.cuda()
    train(model)
    assert model[0].weight.shape == (128, 64) and model[0].weight.is_cuda


@pytest.mark.parametrize(
    "initialise",
    [
        nn.init.xavier_uniform_,
        nn.init.kaiming_normal_,
        nn.init.orthogonal_,
        nn.init.trunc_normal_,
        nn.init.eye_,
        lambda w: nn.init.sparse_(w, 0.1),
        lambda w: w.data.normal_(0, 0.02),
        lambda w: w.data.copy_(torch.ones(64, 64)),
    ],
)
def test_initialisation(initialise: Any) -> None:
    layer = nn.Linear(64, 64)
    with torch.no_grad():
        initialise(layer.weight)
        layer.cuda()
        initialise(layer.weight)
    assert layer.weight.is_cuda


def test_a_forward_pass_on_the_cpu() -> None:
    """Programs do this to find out a shape."""
    features = nn.Sequential(nn.Conv2d(3, 80, 3), nn.BatchNorm2d(80), nn.ReLU(), nn.Flatten())
    out = features(torch.randn(1, 3, 16, 16))
    assert out.shape == (1, 80 * 14 * 14) and out.device.type == "cpu"
    assert torch.cuda.memory_allocated() == 0, "nothing of it is on the card"
    encoder = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    assert encoder(torch.randn(2, 3, 64)).shape == (2, 3, 64)
    assert nn.LSTM(64, 128)(torch.randn(3, 2, 64))[0].shape == (3, 2, 128)
    (features(torch.randn(2, 3, 16, 16)).sum() * 2).backward()
    assert torch.cuda.memory_allocated() == 0


def test_state_dicts() -> None:
    model = nn.Linear(64, 64).cuda()
    saved = {name: torch.zeros(value.shape) for name, value in model.state_dict().items()}
    assert growth(lambda: model.load_state_dict(saved))[0] == 0
    model.load_state_dict(saved, assign=True)
    assert model.weight.device.type == "cpu"
    model.cuda()
    train(model)


def test_sharing_a_model_between_processes() -> None:
    model = nn.Linear(64, 64)
    assert model.share_memory() is model
    assert torch.ones(3).share_memory_().is_shared(), "data is shared for real"


def test_flattened_parameters() -> None:
    model = nn.Linear(4, 4)
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.shape == (20,)
    nn.utils.vector_to_parameters(torch.zeros(20), model.parameters())
    assert model.cuda().weight.is_cuda


def test_weights_copied_back_to_the_host_take_no_ram(gpu: VirtualGpu) -> None:
    before = resident_bytes()
    model = nn.ModuleList([nn.Linear(8192, 8192, bias=False) for _ in range(8)]).cuda()  # 2 GB
    on_host = {name: value.cpu() for name, value in model.state_dict().items()}
    assert all(value.device.type == "cpu" for value in on_host.values())
    assert resident_bytes() - before < 1 << 28
    assert growth(lambda: model.load_state_dict(on_host))[0] == 0


SEVEN_BILLION = """
import resource, torch
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(use_cache=False)) if {build} else LlamaForCausalLM.from_pretrained("{path}")
assert sum(p.numel() for p in model.parameters()) == 6_738_415_616
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
model.to("cuda", torch.bfloat16)
ids = torch.randint(0, 32000, (1, 256), device="cuda")
for _ in range(2):
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
assert peak < 3, f"{{peak:.2f}} GiB of RAM"
assert torch.cuda.max_memory_allocated() > 2 * 6_738_415_616 * 2
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("build", [True, False])
def test_seven_billion_parameters_on_a_laptop(tmp_path: Path, build: bool) -> None:
    """Built on the CPU, or read from a (sparse) file of 12.6 GiB of which only the header exists."""
    pytest.importorskip("transformers")
    folder = tmp_path / "llama"
    if not build:
        from tests.card import sparse_checkpoint

        sparse_checkpoint.write(folder)
    script = tmp_path / "script.py"
    script.write_text(SEVEN_BILLION.format(build=build, path=folder))
    command = [sys.executable, "-m", "vramcast", "run", "--gpu", "h200", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr


def test_a_parameter_whose_content_is_known_is_moved_like_the_others() -> None:
    """Loaded weights are known and gradients are not: one came back with data and the other without, and failed."""
    layer = nn.Linear(4, 4).cuda()
    layer.load_state_dict({name: torch.ones(value.shape) for name, value in layer.state_dict().items()})
    before = [id(parameter) for parameter in layer.parameters()]
    layer(torch.randn(2, 4, device="cuda")).square().sum().backward()
    layer.cpu()
    assert [id(parameter) for parameter in layer.parameters()] == before
    assert layer.bias.sum().item() == 4
    layer.cuda()
    assert [id(parameter) for parameter in layer.parameters()] == before


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: torch.where(condition=x > 0, input=x, other=0.0),
        lambda x: torch.quantile(x, 0.5),
        lambda x: torch.vander(x[0]),
        lambda x: torch.linalg.matrix_power(x[:, :16], 0),
        lambda x: torch.nn.functional.ctc_loss(
            x.log_softmax(-1), torch.ones(4, dtype=torch.long), torch.tensor(16), torch.tensor(4), zero_infinity=True
        ),
    ],
)
def test_what_an_op_makes_beside_a_weight_of_the_host_is_there_too(function: Callable[[Any], Any]) -> None:
    """C++ asks for it by the options of a tensor, in which the host's tensors without data are as the card's."""
    weight = torch.nn.Linear(512, 16).weight
    assert (function(weight) + weight.sum()).device.type == "cpu"
    on_card = weight.cuda()
    assert (function(on_card) + on_card.sum()).is_cuda


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_run_on_the_host_too(cell: Any) -> None:
    """CUDA's fused kernels are the card's alone."""
    model = cell(512, 512)
    out = model(torch.randn(4, 512))
    (out[0] if isinstance(out, tuple) else out).sum().backward()
    assert model.weight_ih.grad.device.type == "cpu"
    assert torch.cuda.memory_allocated() == 0
