"""Sizes that depend on activations: known data stays exact, layers give random numbers, and reads agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from vramcast.card.device.context import VirtualGpu
from vramcast.card.values import guesses


@pytest.fixture
def activations(gpu: VirtualGpu) -> torch.Tensor:
    return nn.Linear(1024, 1000).cuda()(torch.empty(50, 1024, device="cuda"))


def notes(gpu: VirtualGpu) -> set[str]:
    return {note.text for note in gpu.trace().notes if note.topic == "unknown value"}


def test_two_reads_of_one_mask_agree(gpu: VirtualGpu, activations: torch.Tensor) -> None:
    mask = activations > 0.05
    chosen, others = activations[mask], activations[~mask]
    assert chosen.numel() + others.numel() == activations.numel()
    assert 0 < chosen.numel() < others.numel()
    assert torch.where(mask)[0].numel() == mask.nonzero().shape[0] == activations.masked_select(mask).numel()
    assert "indexing with a mask: assumed as many as random activations give" in notes(gpu)


def test_what_is_known_stays_exact(gpu: VirtualGpu, activations: torch.Tensor) -> None:
    labels = torch.full((50,), -100)
    labels[:7] = 3
    labels = labels.to("cuda")
    scores = activations.sum(1)
    assert scores[labels != -100].shape == (7,)
    assert scores[(labels != -100) & torch.isfinite(scores)].shape == (7,)
    assert activations[(activations > 0) & (activations <= 0)].numel() == 0
    assert (scores.sigmoid() <= 1.0).nonzero().numel() == 50


def test_writes_into_a_part(gpu: VirtualGpu, activations: torch.Tensor) -> None:
    matched = torch.zeros(50, dtype=torch.int64, device="cuda")
    matched[activations[:, 0] < 0] = -1
    matched[10:20] = 2
    matched[torch.tensor([0, 1], device="cuda")] = 5
    assert torch.where(matched == 2)[0].numel() == 10
    assert torch.where(matched == 5)[0].tolist() == [0, 1]
    below, zero = torch.where(matched == -1)[0], torch.where(matched == 0)[0]
    assert below.numel() + zero.numel() == 38
    assert 5 < below.numel() < 33


def test_values_that_change_later_do_not_change_an_earlier_recipe(gpu: VirtualGpu, activations: torch.Tensor) -> None:
    limit = torch.zeros(50, 1, device="cuda")
    mask = activations > limit
    limit.fill_(100.0)
    assert mask.nonzero().shape[0] > 10_000
    assert (activations > limit).nonzero().shape[0] == 0


def test_overlap_with_known_boxes(gpu: VirtualGpu) -> None:
    """What a detector does: anchors moved a little by the network, compared with the boxes of the data set."""
    boxes = pytest.importorskip("torchvision.ops")
    side = torch.arange(0, 640, 16.0)
    corner = torch.cartesian_prod(side, side).repeat(20, 1)
    anchors = torch.cat([corner, corner + 64], 1).to("cuda")
    assert anchors.numel() > 100_000, "too many to be followed all the time"
    moved = anchors + nn.Linear(4, 4).cuda()(torch.empty(len(anchors), 4, device="cuda"))
    truth = torch.tensor([[64.0, 64.0, 128.0, 128.0], [300.0, 300.0, 420.0, 400.0]], device="cuda")
    overlap, which = boxes.box_iou(truth, moved).max(dim=0)
    positive = torch.where((overlap >= 0.55) & (which == 0))[0]
    assert notes(gpu)
    assert positive.numel() == 20 * 5  # the same place in each of 20 layers, and its four neighbours
    keep = boxes.nms(moved[:3200], torch.rand(3200, device="cuda"), 0.7)
    assert keep.numel() == 1600  # one of two at each place


def test_large_data_that_is_known_needs_no_note(gpu: VirtualGpu) -> None:
    labels = torch.arange(300_000.0).to("cuda")
    assert labels[labels >= 100_000].numel() == 200_000
    assert torch.where(labels % 3 == 0)[0].numel() == 100_000
    assert notes(gpu) == set()


def test_a_router_sends_each_expert_its_share(gpu: VirtualGpu) -> None:
    tokens, experts, top = 4096, 8, 2
    chosen = nn.Linear(32, experts).cuda()(torch.empty(tokens, 32, device="cuda")).softmax(-1).topk(top, dim=-1).indices
    loads = [torch.where(chosen == expert)[0].numel() for expert in range(experts)]
    assert sum(loads) == tokens * top
    assert all(0.8 < load * experts / (tokens * top) < 1.2 for load in loads)


def test_a_recipe_keeps_no_memory(gpu: VirtualGpu, activations: torch.Tensor) -> None:
    before = torch.cuda.memory_allocated()
    mask = (activations * 2.0).exp().log() > 0
    assert torch.cuda.memory_allocated() - before == 50_000 // 512 * 512 + 512
    assert mask.nonzero().shape[0] > 0


def test_too_many_elements_are_taken_as_all(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "LIMIT", 100)
    x = nn.Linear(512, 100).cuda()(torch.empty(50, 512, device="cuda"))
    assert x[x > 0].numel() == 5000
    assert notes(gpu) == {"indexing with a mask: assumed all 5000 elements chosen"}


def test_every_step_is_alike(gpu: VirtualGpu) -> None:
    layer = nn.Linear(1024, 1000, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    counts = []
    for _ in range(3):
        y = layer(torch.empty(50, 1024, device="cuda"))
        chosen = y[y > 0.01]
        counts.append(chosen.numel())
        chosen.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(set(counts)) == 1


def test_a_choice_by_made_up_numbers_that_are_no_probabilities(gpu: VirtualGpu) -> None:
    weights = torch.nn.Linear(8, 8).cuda()(torch.randn(4, 8, device="cuda"))
    chosen = torch.multinomial(weights - 10, 1)  # negative: no probabilities on any card, but unknown here
    assert chosen.shape == (4, 1) and 0 <= int(chosen[0].item()) < 8


def test_a_gradient_is_unknown_where_a_part_of_it_is(gpu: VirtualGpu, activations: torch.Tensor) -> None:
    """The engine adds the part that comes of activations into the part that is known."""
    scale = nn.Parameter(torch.zeros(50, 1, device="cuda"))
    ((activations * (scale + 1)).mean() + scale.mean()).backward()
    assert scale.grad is not None
    scale.grad.norm().item()
    assert any(text.startswith("read as a Python number") for text in notes(gpu))


def test_columns_that_are_joined_keep_their_ranges(gpu: VirtualGpu) -> None:
    """What detectors do: boxes, scores and classes in one tensor, of which the best rows are taken."""
    made = torch.empty(2_000_000, 1, device="cuda").normal_()  # too much to be worked out for a read
    boxes, scores = 300 + 10 * made.repeat(1, 4).tanh(), made.sigmoid()
    classes = torch.full_like(made, 7.0)
    found = torch.cat((boxes, scores, classes), 1)
    found = found[torch.arange(300, device="cuda")].clone()
    assert set(found[:, 5].tolist()) == {7.0}
    assert all(0 < score < 1 for score in found[:, 4].tolist())
    found[:, :4] /= 2
    assert all(score < 1 for score in found[:, 4:5].flatten().cpu())
    assert (found[:, :4].cpu() > 100).all()
    assert 0 < found[:, 4].mean().item() < 1 and found[:, 5].sum().item() == 2100

    rows = torch.tensor([[300.0, 7.0], [301.0, 8.0]], device="cuda").repeat(500, 1)
    chosen = rows[torch.empty(300, dtype=torch.int64, device="cuda")]  # which rows is not known
    assert set(chosen[:, 1].tolist()) <= {7.0, 8.0} and set(chosen[:, 0].tolist()) <= {300.0, 301.0}


CLASSES = 80


@pytest.fixture
def detections(gpu: VirtualGpu) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Boxes up to 640, scores from 0 to 1 and classes, too many to be worked out for a read."""
    made = torch.empty(2_000_000, 4, device="cuda").normal_()
    scores = made[:, :1].sigmoid()
    return 320 + 10 * made.tanh(), scores, torch.full_like(scores, 79.0)


COLUMNS: dict[str, Callable[..., torch.Tensor]] = {
    "rows by score": lambda boxes, scores, classes: _found(boxes, scores, classes)[scores[:, 0].topk(300)[1]][:, 5],
    "rows gathered": lambda *given: torch.take_along_dim(_found(*given), _places()[:, None], 0)[:, 5],
    "stacked in front": lambda boxes, scores, classes: torch.stack([boxes[:, 0], scores[:, 0], classes[:, 0]])[2],
    "channels in front": lambda *given: torch.cat([part.t() for part in given])[5],
    "channels turned to the end": lambda *given: torch.cat([part.t() for part in given]).t()[_places()][:, 5],
    "split": lambda *given: _found(*given).split((4, 2), 1)[1][:, 1],
    "unbound": lambda *given: _found(*given).unbind(1)[5],
    "flipped": lambda *given: _found(*given).flip(1)[:, 0],
    "columns in another order": lambda *given: _found(*given)[:, [5, 4]][:, 0],
    "columns selected": lambda *given: _found(*given).index_select(1, torch.tensor([4, 5], device="cuda"))[:, 1],
    "rows of several": lambda *given: torch.cat([_found(*given), _found(*given)])[:, 5],
    "times one": lambda *given: (_found(*given) * 1.0)[:, 5],
    "chosen by a mask": lambda boxes, *others: torch.where(boxes[:, :1] > 0, *[_found(boxes, *others)] * 2)[:, 5],
    "highest of each": lambda *given: _found(*given).amax(0)[5:],
    "another column is written": lambda *given: _with_column(_found(*given), 4, given[0][:, 0])[:, 5],
    "all are scaled in place": lambda *given: _found(*given).mul_(1.0)[:, 5],
}


def _found(*parts: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts, 1)


def _places() -> torch.Tensor:
    return torch.arange(300, device="cuda")


def _with_column(rows: torch.Tensor, column: int, values: torch.Tensor) -> torch.Tensor:
    rows[:, column] = values
    return rows


@pytest.mark.parametrize("way", COLUMNS)
def test_classes_beside_boxes_are_classes(detections: tuple[torch.Tensor, ...], way: str) -> None:
    """A confusion matrix that they index has no place for anything else."""
    assert {round(one) for one in COLUMNS[way](*detections)[:50].tolist()} == {CLASSES - 1}


def test_boxes_that_are_made_column_by_column_have_two_corners(gpu: VirtualGpu) -> None:
    centres = torch.empty(2_000_000, 4, device="cuda").normal_().sigmoid() * 100 + 100
    boxes = torch.empty_like(centres)
    boxes[:, 0] = centres[:, 0] - centres[:, 2] / 2
    boxes[:, 2] = centres[:, 0] + centres[:, 2] / 2
    assert all(width > 50 for width in (boxes[:, 2] - boxes[:, 0])[:50].tolist())
    boxes[:, [0, 2]] = boxes[:, [0, 2]].clamp(0, 20)
    assert set(boxes[:, 2][:50].tolist()) == {20.0}


def test_sizes_follow_from_the_parts_of_what_was_joined(gpu: VirtualGpu) -> None:
    """The scores of a head of detections, channels in front, after somebody has looked at it."""
    made = nn.Conv1d(8, 8, 1).cuda()(torch.randn(1, 8, 500_000, device="cuda"))
    head = torch.cat((made[:, :4].sigmoid() * 640, made[:, 4:].sigmoid()), 1)
    head[0, 0, 0].item()
    rows = head.transpose(1, 2)[0]
    best = rows[:, 4:].amax(1)
    assert (best > 1).nonzero().numel() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_softmax_under_autocast_sums_to_one(gpu: VirtualGpu, dtype: torch.dtype) -> None:
    """Its kernel makes fp32 of fp16, which the CPU's does not."""
    with torch.autocast("cuda", dtype):
        logits = nn.Linear(64, 10).cuda()(torch.empty(8, 64, device="cuda"))
        chances, logarithms = logits.softmax(-1), logits.log_softmax(-1)
        assert chances.sum(-1).tolist() == pytest.approx([1.0] * 8, abs=0.01)
        assert chances[chances > 0.3].numel() == 0 and chances[chances > 0].numel() == 80
        target = torch.full((8, 10), 0.1, device="cuda")
        assert (-target * logarithms).sum(-1).mean().item() == pytest.approx(2.3, abs=0.1)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_head_that_finds_nothing_at_first(gpu: VirtualGpu, autocast: bool) -> None:
    """Detectors start with a bias at which no score passes a threshold, in fp32 and under autocast alike."""
    head = nn.Conv2d(16, 6, 1)
    nn.init.constant_(head.bias, -4.6)
    head.bias.data[2] = 4.0
    head.cuda()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(2):  # training moves them slowly
        with torch.autocast("cuda", enabled=autocast):
            scores = head(torch.empty(2, 16, 20, 20, device="cuda")).sigmoid()
        assert torch.where(scores > 0.25)[1].unique().tolist() == [2]
        assert (scores > 0.25).sum().item() == 800
        assert 0.004 < scores[:, 0].mean().item() < 0.4  # of all channels, where a sample is read
        scores.float().sum().backward()
        optimizer.step()
