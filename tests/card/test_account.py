"""Every byte has the right kind and the right module. Sizes are worked out by hand."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import vramcast
from tests.card.reading import by_kind, by_module, first_event
from vramcast.trace import StepTrace

BATCH, LENGTH, WIDTH = 4, 128, 256
TOKENS = BATCH * LENGTH
FLOAT, HALF = 4, 2


class Layer(nn.Module):
    """A feed-forward layer with its norm: enough for every kind of tensor a transformer keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(LENGTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)))) * self.scale


class Model(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


UP = (4 * WIDTH * WIDTH + 4 * WIDTH) * FLOAT
DOWN = (4 * WIDTH * WIDTH + WIDTH) * FLOAT
NORM = 2 * WIDTH * FLOAT
LAYER = UP + DOWN + NORM
NARROW = TOKENS * WIDTH * FLOAT
WIDE = 4 * NARROW
STATISTICS = 2 * TOKENS * FLOAT  # the norm's mean and deviation


def train(model: nn.Module, *, autocast: bool = False, steps: int = 2) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x = torch.randn(BATCH, LENGTH, WIDTH).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def trace_of(model: Any, **options: Any) -> StepTrace:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        train(model().cuda(), **options)
        return gpu.trace()


def test_kinds_when_the_backward_pass_starts() -> None:
    trace = trace_of(Model)
    held = by_kind(trace, first_event(trace, "backward", 1) - 1)
    workspaces = held.pop("workspaces")
    assert workspaces > 0, "cuBLAS keeps one for each thread"
    assert held == {
        "weights": 2 * LAYER,
        "gradients": 0,  # zero_grad has freed them
        "optimizer state": 2 * 2 * LAYER,
        # A layer keeps the norm's statistics and output, the wide tensors before and after GELU, and the product
        # with the scale's other factor is not needed (the scale is no parameter). The first layer's input is the
        # batch; the second's is kept for its norm, and the result for the square.
        "saved activations": 2 * (STATISTICS + NARROW + 2 * WIDE) + 2 * NARROW,
        "temporaries": 0,
        "inputs": NARROW,
        "buffers": 2 * LENGTH * WIDTH * FLOAT,
        "autocast copies": 0,
        # The loss of this step, and the one number that starts the backward pass.
        "outputs/other": 2 * FLOAT,
    }


def test_kinds_under_autocast() -> None:
    trace = trace_of(Model, autocast=True)
    held = by_kind(trace, first_event(trace, "backward", 1) - 1)
    # The region has ended and the cache with it; the backward pass still needs the weights' casts, not the biases'.
    assert held["autocast copies"] == 2 * 2 * 4 * WIDTH * WIDTH * HALF
    assert held["weights"] == 2 * LAYER
    last_product = max(
        trace.born_event[block]
        for block in range(trace.n_blocks)
        if trace.step[block] == 1 and trace.ops[trace.op[block]] == "aten.mul.Tensor"
        if trace.phases[trace.phase[block]] == "forward"
    )
    inside = by_kind(trace, last_product)
    assert inside["autocast copies"] == 2 * (UP + DOWN) * HALF // FLOAT, "linear weights and biases, not the norms"
    assert inside["weights"] == 2 * LAYER and inside["gradients"] == 0


def test_gradients_are_there_when_the_optimizer_starts() -> None:
    trace = trace_of(Model)
    held = by_kind(trace, first_event(trace, "optimizer", 1) - 1)
    assert held["gradients"] == 2 * LAYER
    assert held["saved activations"] == 0
    in_step = by_kind(trace, first_event(trace, "optimizer", 1))
    assert in_step["temporaries"] > 0, "foreach"


def test_each_module_owns_its_weights_gradients_and_state() -> None:
    trace = trace_of(Model)
    modules = by_module(trace, first_event(trace, "optimizer", 1) - 1)
    for layer in ("Model.layers.0", "Model.layers.1"):
        for name, size in (("norm", NORM), ("up", UP), ("down", DOWN)):
            held = modules[f"{layer}.{name}"]
            assert held["weights"] == held["gradients"] == size
            assert held["optimizer state"] == 2 * size
        assert modules[layer]["buffers"] == LENGTH * WIDTH * FLOAT
    assert modules["Model"]["weights"] == 2 * LAYER
    forward = by_module(trace, first_event(trace, "backward", 1) - 1)
    assert forward["Model.layers.1.up"]["saved activations"] == WIDE
    assert forward["Model.layers.1.norm"]["saved activations"] == STATISTICS + NARROW


def test_checkpointed_blocks_are_saved_twice_for_a_while() -> None:
    trace = trace_of(lambda: Model(checkpointed=True))
    start = by_kind(trace, first_event(trace, "backward", 1) - 1)
    # Only the second layer's input and the result; the first one's input is the batch.
    assert start["saved activations"] == 2 * NARROW
    again = [
        by_kind(trace, trace.born_event[block])["saved activations"]
        for block in range(trace.n_blocks)
        if trace.step[block] == 1 and trace.phases[trace.phase[block]] == "backward"
    ]
    # While the second layer runs again, its own wide tensors come back.
    assert max(again) >= 2 * WIDE + 2 * NARROW
    assert max(again) < 2 * 2 * WIDE


def test_a_result_that_the_program_holds_is_an_output() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        layer = nn.Linear(256, 1000, bias=False).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            logits = layer(torch.randn(64, 256, device="cuda"))
            F.cross_entropy(logits, torch.zeros(64, dtype=torch.long, device="cuda")).backward()
            optimizer.step()
            optimizer.zero_grad()
        trace = gpu.trace()
    held = by_kind(trace, first_event(trace, "backward", 1) - 1)
    scores = 64 * 1000 * FLOAT
    assert held["outputs/other"] >= scores, "the logits outlive the backward pass"
    assert scores <= held["saved activations"] < 2 * scores, "log-softmax's output does not"
    assert held["inputs"] == 64 * 256 * FLOAT + 64 * 8, "the batch and the targets are made on the card"


def test_a_copy_of_a_model_is_weights_too() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        model = Model().cuda()
        average = copy.deepcopy(model)
        train(model)
        trace = gpu.trace()
        del average
    assert by_kind(trace, first_event(trace, "backward", 1) - 1)["weights"] == 2 * 2 * LAYER


def test_inference_saves_nothing() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        model = Model().cuda().eval()
        with torch.no_grad():
            model(torch.randn(BATCH, LENGTH, WIDTH, device="cuda"))
        trace = gpu.trace()
    peak = gpu.prediction().account
    assert peak.part("saved activations") == 0
    assert peak.part("temporaries") > 0
    assert by_kind(trace, trace.n_events - 1)["weights"] == 2 * LAYER


def test_gradients_without_an_optimizer() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        model = Model().cuda()
        model(torch.randn(BATCH, LENGTH, WIDTH, device="cuda")).sum().backward()
        trace = gpu.trace()
    assert by_kind(trace, trace.n_events - 1)["gradients"] == 2 * LAYER


def test_a_model_that_goes_out_of_scope_is_not_kept() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        train(Model().cuda())
        gc.collect()
        trace = gpu.trace()
    alive = by_kind(trace, trace.n_events - 1)
    assert {kind for kind, size in alive.items() if size} == {"workspaces"}
    assert gpu.prediction().account.part("weights") == 2 * LAYER, "they were there at the peak"


def test_two_models_of_one_class_have_two_names() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        for _ in range(2):
            nn.Linear(8, 8).cuda()(torch.ones(2, 8, device="cuda"))
        assert {"Linear", "Linear#2"} <= set(gpu.trace().modules)


def test_layers_that_are_tried_out_while_a_model_is_built_are_named_after_it() -> None:
    class Probing(Model):
        def __init__(self) -> None:
            super().__init__()
            self.forward(torch.zeros(1, LENGTH, WIDTH))  # as YOLO does, for the strides of its layers

    with vramcast.virtual_gpu("rtx-4090") as gpu:
        model = Probing().cuda()
        model(torch.rand(BATCH, LENGTH, WIDTH, device="cuda")).sum().backward()
        trace = gpu.trace()
    assert {trace.modules[number] for number in trace.module} > {"Probing.layers.0.up", "Probing.layers.1.up"}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_parts_add_up_at_every_moment(checkpointed: bool) -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        train(Model(checkpointed).cuda(), autocast=True)
    prediction = gpu.prediction()
    assert sum(part.size_bytes for part in prediction.account.parts) == prediction.device_bytes
    assert prediction.account.modules.total_bytes == sum(prediction.account.modules.by_kind_bytes.values())
