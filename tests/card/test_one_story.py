"""Values that only a real run would know: every read gives the same one, it is finite, and guards let it pass."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.card.scripts import notes, runner
from vramcast.card.device.context import VirtualGpu

TRAINING = """
import math, numpy, torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    x = torch.randn(64, 512, device="cuda")
    y = torch.randint(0, 1000, (64,), device="cuda")
    out = model(x)
    loss = F.cross_entropy(out, y)
    {before}
    loss.backward()
    {after}
    optimizer.step()
    optimizer.zero_grad()
"""

# Conditions under which loops in the wild skip a step, or end.
SKIPS = [
    "not torch.isfinite(loss)",
    "not loss.isfinite().all()",
    "not loss < 1e4 or loss > 1e4",
    "torch.isnan(loss).any() or torch.isinf(loss).any()",
    "loss != loss",
    "math.isnan(loss.item()) or math.isinf(loss.detach())",
    "numpy.isnan(loss.detach().cpu().numpy())",
    "not numpy.isfinite(out.detach().cpu().numpy()).all()",
    "out.abs().max() > 1e4 or out.isnan().any()",
    "loss == 0 or loss.item() == 0.0 or loss < 0",
    "not math.isfinite(loss.tolist()) or not torch.isfinite(loss.cpu())",
    "any(not torch.isfinite(p).all() for p in model.parameters())",
    "math.isnan(sum(p.sum().item() for p in model.parameters()))",
    "torch.allclose(out, out * 2) or torch.equal(out, out * 2)",
    "(out.argmax(-1) == y).float().mean().item() > 0.99",
    "'nan' in f'{loss:.3f}' or 'nan' in str(loss) or 'inf' in repr(loss)",
    "math.exp(loss.item()) > 1e6 or not torch.exp(loss).isfinite()",
    "not torch.is_nonzero(loss)",
    "torch.nan_to_num(loss, nan=-1.0) == -1.0",
    "not torch.stack([loss, loss * 2]).isfinite().all() or loss.half().isinf()",
    "any(math.isnan(value) for value in out[0].tolist())",
    "F.cosine_similarity(out, out).isnan().any() or out.std() == 0",
    "F.kl_div(out.log_softmax(-1), out.softmax(-1), reduction='batchmean').isnan()",
]
SKIPS_AFTER = [
    "not torch.isfinite(norm) or norm.isnan() or norm.isinf() or norm == 0",
    "not math.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True).item())",
    "any(not torch.isfinite(p.grad).all() or p.grad.isnan().any() for p in model.parameters())",
    "sum(p.grad.norm().item() for p in model.parameters()) == 0",
    "any(numpy.isnan(p.grad.cpu().numpy()).any() for p in model.parameters())",
]
CLIP = "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def test_guards_let_the_steps_be_made(tmp_path: Path) -> None:
    before, after = (
        "\n    ".join(f"if {condition}: raise RuntimeError({condition!r})" for condition in conditions)
        for conditions in (SKIPS, SKIPS_AFTER)
    )
    prediction = runner(tmp_path)(TRAINING.format(before=before, after=f"{CLIP}\n    {after}"))
    assert prediction.steps == 3
    weights = 4 * (512 * 256 + 256 + 256 * 1000 + 1000)
    assert prediction.account.part("weights") == weights
    assert prediction.account.part("optimizer state") == 2 * weights


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if not torch.isfinite(loss): continue", "pass"),
        ("if not loss < 1e4: continue", "pass"),
        ("pass", f"{CLIP}\n    if not torch.isfinite(norm): continue"),
    ],
)
def test_a_guard_does_not_change_the_prediction(before: str, after: str, tmp_path: Path) -> None:
    run = runner(tmp_path)
    guarded = run(TRAINING.format(before=before, after=after))
    unguarded = run(TRAINING.format(before="pass", after=after.partition("\n")[0]))
    assert guarded.steps == unguarded.steps == 3
    assert guarded.device_bytes == unguarded.device_bytes


def test_a_loss_scaler_makes_its_steps(tmp_path: Path) -> None:
    scaled = TRAINING.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
        "optimizer.step()", "scaler.step(optimizer); scaler.update(); assert scaler.get_scale() == 65536"
    )
    scaled = scaled.replace("for step", "scaler = torch.amp.GradScaler('cuda')\nfor step")
    assert runner(tmp_path)(scaled.format(before="pass", after="pass")).steps == 3


@pytest.fixture(params=[(64, 500), (8192, 50257)], ids=["small", "large"])
def outputs(request: pytest.FixtureRequest, gpu: VirtualGpu) -> torch.Tensor:
    """Logits: of few enough elements to be worked out one by one, and of 400 million."""
    rows, classes = request.param
    return nn.Linear(512, classes).cuda()(torch.randn(rows, 512, device="cuda"))


def test_every_read_gives_the_same(outputs: torch.Tensor) -> None:
    targets = torch.zeros(len(outputs), dtype=torch.int64, device="cuda")
    loss = F.cross_entropy(outputs, targets)
    value = loss.item()
    assert value == pytest.approx(math.log(outputs.shape[1]), rel=0.1), "as of a network that knows nothing yet"
    detached = loss.detach()
    others = [
        loss.item(), float(detached), loss.cpu().item(), loss.tolist(), detached.cpu().numpy().item(),
        loss.to("cpu").item(), numpy.asarray(detached.cpu()).item(), loss.double().item(), (loss * 1).item(),
        torch.empty(()).copy_(detached).item(), torch.stack([loss, loss])[1].item(),
        F.cross_entropy(outputs, targets).item(),
    ]  # fmt: skip
    assert others == pytest.approx([value] * len(others), rel=1e-6)
    assert f"{loss:.4f}" == f"{value:.4f}" and f"{value:.4f}" in str(detached)
    assert loss == value and not torch.ne(loss, loss) and loss < value + 1 and loss > value - 1


def test_elements_are_the_same_wherever_they_are_read(outputs: torch.Tensor) -> None:
    first = outputs[0, :3].tolist()
    assert first == outputs[0][:3].cpu().tolist() == [outputs[0, i].item() for i in range(3)]
    assert len(set(first)) == 3
    row = outputs[5].detach()
    assert row.cpu().numpy()[7] == row[7].item() == outputs.detach()[5:6].cpu()[0, 7].item()


def test_what_arithmetic_says_of_a_tensor_holds(outputs: torch.Tensor) -> None:
    shares = outputs.softmax(-1)
    assert shares.sum(-1)[0].item() == pytest.approx(1, rel=1e-5) and shares.sum().item() == pytest.approx(len(shares))
    assert shares.min().item() >= 0 and shares.max().item() <= 1
    assert outputs.exp().min().item() > 0 and outputs.norm().item() > 0 and outputs.var().item() > 0
    assert outputs.abs().mean().item() <= outputs.abs().max().item()
    assert bool(torch.isfinite(outputs).all()) and not outputs.isnan().any() and not torch.isinf(outputs).any()
    assert bool((outputs > 0).any()) and not (outputs > 0).all()
    assert F.mse_loss(outputs, torch.randn_like(outputs)).item() == pytest.approx(1, rel=0.2)
    assert math.isfinite(outputs.log().mean().item()) and math.isfinite((outputs / 0).sum().item())
    assert outputs.masked_fill(outputs > 0, -math.inf).min().item() == -math.inf, "the program's own infinity stays"


def test_weights_read_on_the_host_are_those_of_the_card(gpu: VirtualGpu) -> None:
    weight = nn.Linear(1500, 2000).cuda().weight.detach()
    array = weight.cpu().numpy()
    assert array.shape == (2000, 1500) and array.std() > 0
    assert array[3, 5] == weight[3, 5].item() == weight.cpu()[3, 5].item()
    assert array.mean() == pytest.approx(weight.mean().item(), abs=1e-4)
    assert weight.cpu().abs().max().item() == pytest.approx(weight.abs().max().item())
    assert torch.allclose(weight, weight) and not torch.allclose(weight, torch.zeros_like(weight))


def test_a_tensor_that_is_written_from_itself(gpu: VirtualGpu) -> None:
    total = torch.zeros((), device="cuda")
    loss = nn.Linear(8, 1).cuda()(torch.randn(1, 8, device="cuda")).sum().detach()
    total += loss
    assert total.item() == loss.item()
    total -= total
    assert total.item() == 0


def test_the_same_in_every_step(tmp_path: Path) -> None:
    prediction = runner(tmp_path)(TRAINING.format(before="print(loss.item())", after="pass"))
    (note,) = notes(prediction, "unknown value")
    assert float(note.removeprefix("read as a Python number: assumed ")) == pytest.approx(math.log(1000), rel=0.02)


def test_reading_does_not_disturb_the_programs_random_numbers(gpu: VirtualGpu) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert torch.rand(4096, 4096, device="cuda").mean().item() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(torch.rand(3), expected)
