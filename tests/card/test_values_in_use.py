"""What public training code does with numbers that only a real run knows: each use must go through, and what follows
from how a number was computed must hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as dist
import torch.nn.functional as F
from torch import nn

from vramcast.card.device.context import VirtualGpu
from vramcast.trace import UNKNOWN_SIZE

Network = Callable[[int], torch.Tensor]
"""Gives so many outputs for each of 32 inputs."""


@pytest.fixture(params=[64, 8192], ids=["known weights", "unknown weights"])
def network(request: pytest.FixtureRequest, gpu: VirtualGpu) -> Network:
    """Small weights are followed from their initialisation on; large ones are not known."""

    def evaluate(outputs: int) -> torch.Tensor:
        hidden = request.param
        layers = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, outputs)).cuda()
        return layers(torch.randn(32, 8).cuda())  # type: ignore[no-any-return]

    return evaluate


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x.chunk(2, -1)
    return a, b


def _lower(x: torch.Tensor) -> torch.Tensor:
    return torch.tril(x.view(32, 4, 4), -1) + torch.diag_embed(F.softplus(x[:, :4]) + 1e-3)


DISTRIBUTIONS: dict[str, Callable[[Network], Any]] = {
    "Normal": lambda net: dist.Normal(net(4), net(4).exp()),
    "Normal, softplus": lambda net: dist.Normal(net(4), F.softplus(net(4)) + 1e-4),
    "Independent": lambda net: dist.Independent(dist.Normal(net(4), net(4).exp()), 1),
    "Categorical of logits": lambda net: dist.Categorical(logits=net(5)),
    "Categorical of a softmax": lambda net: dist.Categorical(probs=net(5).softmax(-1)),
    "Categorical of 50,000": lambda net: dist.Categorical(probs=net(50_000).softmax(-1)),
    "OneHotCategorical": lambda net: dist.OneHotCategorical(logits=net(64).view(32, 8, 8)),
    "Bernoulli": lambda net: dist.Bernoulli(probs=net(5).sigmoid()),
    "Beta": lambda net: dist.Beta(*_halves(F.softplus(net(4)) + 1)),
    "Gamma": lambda net: dist.Gamma(*_halves(F.softplus(net(4)))),
    "Dirichlet": lambda net: dist.Dirichlet(F.softplus(net(4)) + 1e-3),
    "Laplace": lambda net: dist.Laplace(net(4), F.softplus(net(4))),
    "StudentT": lambda net: dist.StudentT(2 + F.softplus(net(4)), net(4), net(4).exp()),
    "Poisson": lambda net: dist.Poisson(net(4).exp()),
    "Exponential": lambda net: dist.Exponential(net(4).exp()),
    "LogNormal": lambda net: dist.LogNormal(net(4), net(4).exp()),
    "MixtureSameFamily": lambda net: dist.MixtureSameFamily(
        dist.Categorical(logits=net(3)), dist.Normal(net(3), F.softplus(net(3)) + 1e-3)
    ),
    "tanh of a Normal": lambda net: dist.TransformedDistribution(
        dist.Normal(net(4), net(4).clamp(-5, 2).exp()), [dist.TanhTransform(cache_size=1)]
    ),
    "MultivariateNormal, scale": lambda net: dist.MultivariateNormal(net(4), scale_tril=_lower(net(16))),
    "MultivariateNormal, covariance": lambda net: dist.MultivariateNormal(
        net(4), (a := net(16).view(32, 4, 4)) @ a.mT + 1e-2 * torch.eye(4).cuda()
    ),
    "LowRankMultivariateNormal": lambda net: dist.LowRankMultivariateNormal(
        net(4), net(8).view(32, 4, 2), F.softplus(net(4)) + 1e-3
    ),
    "RelaxedOneHotCategorical": lambda net: dist.RelaxedOneHotCategorical(torch.tensor(0.5).cuda(), logits=net(5)),
}


@pytest.mark.parametrize("make", DISTRIBUTIONS.values(), ids=list(DISTRIBUTIONS))
def test_a_distribution_takes_its_parameters_and_its_own_samples(make: Callable[[Network], Any], network: Network):
    distribution = make(network)
    drawn = distribution.rsample() if distribution.has_rsample else distribution.sample()
    likelihood = distribution.log_prob(drawn)
    assert drawn.shape == distribution.batch_shape + distribution.event_shape
    assert likelihood.shape == distribution.batch_shape
    assert math.isfinite(likelihood.mean().item())


def test_what_a_softmax_and_a_norm_promise(network: Network) -> None:
    shares = network(10).softmax(-1)
    assert torch.allclose(shares.sum(-1), torch.ones(32).cuda())
    unit = F.normalize(network(10), dim=-1)
    assert torch.allclose(unit.norm(dim=-1), torch.ones(32).cuda(), atol=1e-5)
    assert ((unit @ unit.T).abs() <= 1 + 1e-5).all().item() is True
    assert (network(10).exp() > 0).all().item() is True
    assert (network(10).var(0) >= 0).all().item() is True
    assert F.gumbel_softmax(network(10), hard=True).sum().item() == pytest.approx(32)


def test_boxes_have_two_corners_in_order(network: Network) -> None:
    cx, cy, w, h = network(4).sigmoid().unbind(-1)
    boxes = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1)
    assert (boxes[:, 2:] >= boxes[:, :2]).all().item() is True


def test_linear_algebra_holds(network: Network) -> None:
    a = network(16)
    gram = a.T @ a + 1e-3 * torch.eye(16).cuda()
    lower, info = torch.linalg.cholesky_ex(gram)
    assert info.item() == 0
    assert torch.allclose(lower @ lower.T, gram, atol=1e-4)
    values, vectors = torch.linalg.eigh(gram)
    assert (values > 0).all().item() is True
    assert torch.allclose(vectors.T @ vectors, torch.eye(16).cuda(), atol=1e-4)
    singular = torch.linalg.svd(a).S
    assert (singular[:-1] >= singular[1:]).all().item() is True
    q, r = torch.linalg.qr(a)
    assert torch.allclose(q @ r, a, atol=1e-4)
    assert torch.allclose(gram @ torch.linalg.solve(gram, a.T), a.T, atol=1e-3)
    assert torch.logdet(gram).item() == pytest.approx(values.log().sum().item(), abs=0.1)


def test_a_large_factorisation_succeeds(gpu: VirtualGpu) -> None:
    a = nn.Linear(8, 2048).cuda()(torch.randn(2048, 8).cuda())
    gram = a.T @ a
    assert torch.linalg.cholesky_ex(gram).info.item() == 0
    assert torch.linalg.inv_ex(gram).info.item() == 0
    assert torch.linalg.cholesky(gram).shape == (2048, 2048)


def test_loops_that_wait_for_convergence_end(network: Network) -> None:
    layer, z, data = nn.Linear(256, 256).cuda(), torch.zeros(32, 256).cuda(), torch.randn(32, 256).cuda()
    error, rounds = torch.tensor(1.0).cuda(), 0
    while error > 1e-3 and rounds < 1000:  # a fixed point
        following = torch.tanh(layer(z) + data)
        error, z = (following - z).norm() / following.norm(), following
        rounds += 1
    assert rounds < 100
    kernel = torch.exp(-torch.cdist(network(8), network(8)))
    u = torch.ones(32).cuda() / 32
    error, rounds = torch.tensor(1.0).cuda(), 0
    while error > 1e-4 and rounds < 10_000:  # Sinkhorn
        before, u = u, 1 / 32 / (kernel @ (1 / 32 / (kernel.T @ u)))
        error = (u - before).abs().sum()
        rounds += 1
    assert 0 < rounds < 10_000


def test_a_loop_whose_rounds_are_not_known_is_noted(gpu: VirtualGpu) -> None:
    error = nn.Linear(8192, 4).cuda()(torch.randn(1, 8192).cuda()).abs().sum()
    while error > 1e-3:
        error = error / 2
    notes = {note.text for note in gpu.trace().notes if note.topic == UNKNOWN_SIZE}
    assert notes == {
        "read as a Python number: assumed True; how often the loop runs depends on it (--compute-values computes it)"
    }


def test_a_number_that_may_become_a_size_is_noted(gpu: VirtualGpu) -> None:
    """As a learned attention span does; a loss that is rounded to be printed does not."""
    span = nn.Linear(8192, 4).cuda()(torch.randn(1, 8192).cuda()).sigmoid().mean()
    length = math.ceil(span.item() * 100)
    int(span * 100)
    round(span.item(), 4)
    assert 0 < length <= 100
    notes = [(note.topic, "sizes may depend on it" in note.text) for note in gpu.trace().notes]
    assert notes == [(UNKNOWN_SIZE, True), (UNKNOWN_SIZE, True), ("unknown value", False)]


def test_how_many_different_values_there_are_is_noted(gpu: VirtualGpu) -> None:
    """Programs loop over the groups or the classes that were chosen, as SMoG does; known labels need no note."""
    torch.unique(torch.arange(8).cuda())
    chosen = nn.Linear(64, 40).cuda()(torch.randn(30, 64).cuda()).argmax(1)
    assert 1 < sum(1 for _ in chosen.unique()) < 30
    notes = {note.text for note in gpu.trace().notes if note.topic == UNKNOWN_SIZE}
    assert notes == {
        "unique: assumed as many different values as random activations give; "
        "sizes and loops may depend on it (--compute-values computes it)"
    }


def test_an_adaptive_step_is_accepted(gpu: VirtualGpu) -> None:
    """Heun against Euler, as solvers of differential equations choose their step."""
    field = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512)).cuda()
    y, t, step, evaluations = torch.randn(64, 512).cuda(), 0.0, 0.1, 0
    while t < 1:
        slope = field(y)
        second = field(y + step * slope)
        error = (step * (second - slope) / 2).abs().max() / 1e-3
        evaluations += 2
        if error <= 1:
            y, t = y + step * (slope + second) / 2, t + step
        step = step * min(2.0, max(0.2, 0.9 * error.clamp_min(1e-8).item() ** -0.5))
        assert evaluations < 500, "the step became too small"
    assert evaluations <= 20


def test_two_batches_differ_and_the_same_batch_does_not(gpu: VirtualGpu) -> None:
    layer = nn.Linear(4096, 64).cuda()
    first, second = torch.randn(8, 4096).cuda(), torch.randn(8, 4096).cuda()
    assert torch.equal(layer(first), layer(first))
    assert not torch.equal(layer(first), layer(second))
    assert not torch.equal(layer(first), nn.Linear(4096, 64).cuda()(first))


def test_counts_agree_however_they_are_asked_for(network: Network) -> None:
    scores = network(1).squeeze(1)
    mask = scores > 0
    count = int(mask.sum())
    assert mask.nonzero().shape[0] == count == scores[mask].numel() == torch.count_nonzero(mask).item()
    assert torch.masked_select(scores, mask).numel() == count
    labels = network(10).argmax(1)
    assert labels.min() >= 0 and labels.max() < 10
    assert torch.bincount(labels, minlength=10).sum().item() == 32
    kinds, counts = torch.unique(labels, return_counts=True)
    assert counts.sum().item() == 32 and kinds.numel() <= 10
    assert sum(part.shape[0] for part in network(3)[labels.argsort()].split(counts.tolist())) == 32
    durations = network(1).squeeze(1).exp().round().clamp_min(1).long()
    assert network(4).repeat_interleave(durations, 0).shape[0] == int(durations.sum())
    assert torch.histc(network(10), bins=20).sum().item() == 320
    ordered = network(10).sort(-1).values
    assert (torch.searchsorted(ordered, torch.zeros(32, 1).cuda()) <= 10).all()
    low, middle, high = torch.quantile(network(10), torch.tensor([0.1, 0.5, 0.9]).cuda()).tolist()
    assert low <= middle <= high


def test_choices_by_probability(network: Network) -> None:
    shares = network(100).softmax(-1)
    best, which = shares.topk(10)
    kept = torch.zeros_like(shares).scatter(1, which, best)
    chosen = torch.multinomial(kept / kept.sum(-1, keepdim=True), 1)
    assert (which == chosen).any(-1).all().item() is True
    assert len(set(torch.multinomial(network(100)[0].exp(), 20).tolist())) == 20


def test_dropout_drops_its_share(gpu: VirtualGpu) -> None:
    for size in (1000, 4_000_000):
        left = F.dropout(torch.ones(size).cuda(), 0.25)
        assert (left == 0).float().mean().item() == pytest.approx(0.25, abs=0.07)
        assert left.max().item() == pytest.approx(1 / 0.75)


def test_checks_of_made_up_values_pass(gpu: VirtualGpu) -> None:
    y = nn.Linear(8192, 4).cuda()(torch.randn(5, 8192).cuda())
    never, always = (y > 100).any(), (y < 100).all()
    assert (y > 100).all()
    assert not (y < 100).any(), "with a message"
    assert (y > 100).all() and not (y < 100).any()
    assert bool((y > 100).all())
    assert torch.allclose(y, y + 1)
    if not (y > 100).all():
        raise ValueError
    if (y < 100).any() or (y < 101).any():
        raise ValueError(f"{y}")
    if (y > 100).all():
        pass
    else:
        raise ValueError

    def look() -> int:
        if (y > 100).all():
            return 1
        message = "too small"
        raise ValueError(message)

    assert look() == 1
    notes = [note.text for note in gpu.trace().notes if note.topic == "unknown value"]
    assert any(text.endswith("assumed True, with which the check passes") for text in notes)
    # What is no check is told what was made up.
    told = [bool(never), bool(always), 1 if (y > 100).all() else 0]
    assert told == [False, True, 0]


def test_a_check_of_what_is_known_may_fail(gpu: VirtualGpu) -> None:
    ids = torch.tensor([1, 2, 3]).cuda()
    with pytest.raises(AssertionError):
        assert (ids > 1).all()


def test_a_loop_that_only_a_failing_check_ends_does_end(gpu: VirtualGpu) -> None:
    step = nn.Linear(8192, 4).cuda()(torch.randn(1, 8192).cuda()).abs().sum()
    rounds = 0
    with pytest.raises(ArithmeticError):
        while rounds < 100_000:
            if not step > 1e6:
                raise ArithmeticError("underflow")
            rounds += 1
    assert rounds == 2000
