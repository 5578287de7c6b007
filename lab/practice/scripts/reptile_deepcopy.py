"""Reptile: a deep copy of the network trained on each task, the weights moved towards it; second-order ANIL beside it."""

import copy

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
blocks = [nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
for _ in range(3):
    blocks += [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 25, 5)).cuda()
for iteration in range(3):
    moved = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for task in range(4):
        learner = copy.deepcopy(net)
        inner = torch.optim.SGD(learner.parameters(), lr=0.01)
        for _ in range(3):
            x, y = torch.randn(25, 3, 84, 84, device="cuda"), torch.randint(0, 5, (25,), device="cuda")
            inner.zero_grad()
            nn.functional.cross_entropy(learner(x), y).backward()
            inner.step()
        with torch.no_grad():
            for name, p in learner.named_parameters():
                moved[name] += p / 4
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.lerp_(moved[name], 0.1)
outer = torch.optim.Adam(net.parameters(), lr=1e-3)
for iteration in range(3):
    total = 0
    for task in range(4):
        x, y = torch.randn(50, 3, 84, 84, device="cuda"), torch.randint(0, 5, (50,), device="cuda")
        fast = dict(net.named_parameters())
        for _ in range(2):
            loss = nn.functional.cross_entropy(functional_call(net, fast, (x[:25],)), y[:25])
            gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {n: p - 0.01 * g for (n, p), g in zip(fast.items(), gradients, strict=True)}
        total = total + nn.functional.cross_entropy(functional_call(net, fast, (x[25:],)), y[25:])
    outer.zero_grad()
    total.backward()
    outer.step()
print(total.item())
