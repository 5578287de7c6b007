"""What a job keeps in the computer's memory: the same allocations as the libraries by hand, and what is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.jobs.tiny import JOB, Mixer
from vramcast.card.device.context import virtual_gpu
from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.editing.by_hand import by_hand
from vramcast.jobs.validation import make_job
from vramcast.prediction.predict import predict

CARD = "rtx-4090"
BATCH = 4096
LARGE = {**JOB, "sizes": {"batch": BATCH}}
TAUGHT = {
    "components": {
        "teacher": {"factory": "tests.jobs.tiny:mixer", "arguments": {"width": 512}, "mode": "frozen", "inputs": ["x"]},
        "model": {"factory": "tests.jobs.tiny:mixer", "inputs": ["x"]},
    },
    "inputs": JOB["inputs"],
    "sizes": {"batch": BATCH},
    "loss": {"kind": "mse", "target": "teacher"},
    "outputs_live_until": "step",
    "forward_function": False,
}


def requested(make: Callable[[], Callable[[], None]]) -> list[int]:
    with virtual_gpu(CARD) as gpu:
        step = make()
        for _ in range(3):
            step()
    return list(gpu.trace().requested_bytes)


def asked(job: dict[str, Any]) -> list[int]:
    trace = predict(job, CARD).trace
    assert trace is not None
    return list(trace.requested_bytes)


@pytest.mark.parametrize("pinned", [False, True])
def test_activations(pinned: bool) -> None:
    def make() -> Callable[[], None]:
        model = Mixer().to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        x, labels = torch.randn(BATCH, 64), torch.randint(0, 10, (BATCH,))

        def step() -> None:
            optimizer.zero_grad()
            on_card = x.to("cuda"), labels.to("cuda")
            with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
                loss = F.cross_entropy(model(on_card[0]), on_card[1])
            loss.backward()
            optimizer.step()

        return step

    job = {**LARGE, "offload": {"activations": True, "pinned": pinned}}
    assert asked(job) == requested(make)
    found, without = predict(job, CARD), predict(LARGE, CARD)
    assert found.peak_allocated_bytes < 0.7 * without.peak_allocated_bytes
    host = found.prediction.host
    assert host is not None and without.host_bytes == 0
    assert sum(host.parts.values()) == host.peak_bytes == found.host_bytes
    assert host.parts["saved activations"] > 50 * 2**20
    if pinned:
        assert host.pinned_bytes == host.peak_bytes and "pinned cache and rounding" in host.parts
    else:
        assert host.pinned_bytes == 0 and list(host.parts) == ["saved activations"]


def test_a_frozen_component_is_moved_for_its_call() -> None:
    def make() -> Callable[[], None]:
        teacher = Mixer(width=512).requires_grad_(False).eval()
        model = Mixer().to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        x, labels = torch.randn(BATCH, 64), torch.randint(0, 10, (BATCH,))

        def step() -> None:
            optimizer.zero_grad()
            on_card, _ = x.to("cuda"), labels.to("cuda")
            teacher.to("cuda")
            with torch.no_grad():
                target = teacher(on_card)
            teacher.to("cpu")
            F.mse_loss(model(on_card), target).backward()
            optimizer.step()

        return step

    assert sorted(asked({**TAUGHT, "offload": "model"})) == sorted(requested(make))
    host = predict({**TAUGHT, "offload": "model"}, CARD).prediction.host
    weights = sum(p.numel() * 4 for p in Mixer(width=512).parameters())
    assert host is not None and host.parts["weights"] == pytest.approx(weights, rel=2e-3), "small ones are not counted"


def test_sequential_takes_less_than_model_and_model_less_than_none() -> None:
    pytest.importorskip("accelerate")
    for task in ("training", "inference"):
        job = {**TAUGHT, "task": task, "sizes": {"batch": 64}}
        if task == "inference":
            job.pop("loss")
        none, model, modules = (
            predict({**job, "offload": {"components": how}}, CARD).peak_allocated_bytes
            for how in ("none", "model", "sequential")
        )
        assert modules < model < none


def test_the_optimizer_on_the_cpu() -> None:
    pytest.importorskip("torchao")
    wide = {**JOB["components"]["model"], "arguments": {"width": 512}}
    job = {**JOB, "components": {"model": wide}, "sizes": {"batch": 8}, "offload": "optimizer"}
    found = predict(job, CARD)
    host, large = found.prediction.host, 4 * sum(p.numel() for p in Mixer(512).parameters() if p.numel() >= 4096)
    assert found.prediction.steps == 3, "one of the optimizer, not of each that it is made of"
    assert host is not None
    assert host.parts["optimizer state"] == 2 * large and host.parts["weights"] == host.parts["gradients"] == large
    assert (
        found.account.part("optimizer state") < large / 20 and found.parameters.trained_count == found.parameters.count
    )
    gone = predict({**job, "offload": ["optimizer", "gradients"]}, CARD)
    assert gone.peak_allocated_bytes < found.peak_allocated_bytes


@pytest.mark.parametrize("form", ["activations", ["activations"], {"activations": True}])
def test_short_forms(form: Any) -> None:
    assert make_job({**JOB, "offload": form}, "job").offload.activations
    both = make_job({**JOB, "offload": ["optimizer", "sequential"]}, "job").offload
    assert both.optimizer and both.components == "sequential"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offload": "activaton"}, "did you mean 'activations'?"),
        ({"offload": {"pinned": True}}, "`pinned` is of activations"),
        ({"offload": "optimizer", "gradient_clipping": 1.0}, "before they can be clipped"),
        ({"offload": "optimizer", "gpus": 2}, "is for one GPU"),
        ({"offload": "optimizer", "precision": "fp16"}, "GradScaler"),
        ({"offload": ["optimizer", "gradients"], "accumulation": 2}, "nothing is left on the card to accumulate"),
        ({"components": {"model": {**JOB["components"]["model"], "offload": "model"}}}, "its weights are trained"),
    ],
)  # fmt: skip
def test_what_contradicts(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_job({**JOB, **change}, "job")


@pytest.mark.parametrize(
    ("gpus", "said"), [({"offload_optimizer": True}, "offload.optimizer=true"), ({"offload_parameters": True}, "model")]
)
def test_what_is_not_modelled_names_what_is(gpus: dict[str, Any], said: str) -> None:
    with pytest.raises(CannotPredict, match=f"not modelled.*{said}"):
        predict({**JOB, "gpus": gpus}, CARD)


def test_zeros_keep_gradients_on_the_card() -> None:
    kept, gone = (predict({**LARGE, "set_to_none": value}, CARD) for value in (False, True))
    assert kept.peak_allocated_bytes > gone.peak_allocated_bytes


def test_cross_entropy_in_pieces() -> None:
    pytest.importorskip("transformers")
    job = {
        "components": {"model": {"transformers": "tests/jobs/folders/llama-2-7b", "config": {
            "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
            "num_key_value_heads": 4}}},
        "sizes": {"batch": 2, "sequence": 512},
    }  # fmt: skip
    whole = predict(job, CARD)
    peaks = [predict({**job, "loss": {"kind": "model", "chunks": n}}, CARD).peak_allocated_bytes for n in (2, 8)]
    logits = 2 * 512 * 32_000 * 4
    assert peaks[1] < peaks[0] < whole.peak_allocated_bytes
    assert whole.peak_allocated_bytes - peaks[1] > logits
    with pytest.raises(UsageError, match="no causal language model"):
        predict({**JOB, "loss": {"kind": "model", "chunks": 4}}, CARD)


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"offload.activations": True, "offload.pinned": True},
         ["with torch.autograd.graph.save_on_cpu(pin_memory=True):  # around the forward pass"]),
        ({"offload.optimizer": True}, ["torchao.optim.CPUOffloadOptimizer(parameters, optimizer class)"]),
        ({"offload.components": "model"},
         ['component.to("cuda")  # before its call, .to("cpu") after it, for teacher']),
        ({"loss": {"kind": "model", "chunks": 4}},
         ["torch.utils.checkpoint.checkpoint(head_and_cross_entropy, piece)  # for each of hidden.chunk(4, dim=1)"]),
    ],
)  # fmt: skip
def test_what_to_write_in_a_script(changes: dict[str, Any], lines: list[str]) -> None:
    assert list(by_hand(make_job(TAUGHT, "job"), changes)) == lines
