"""MAML over a batch of tasks with torch.func: vmap of an inner loop of grad steps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 64, 3, 2, 1),
    nn.BatchNorm2d(64, track_running_stats=False),
    nn.ReLU(),
    nn.Conv2d(64, 64, 3, 2, 1),
    nn.BatchNorm2d(64, track_running_stats=False),
    nn.ReLU(),
    nn.Conv2d(64, 64, 3, 2, 1),
    nn.BatchNorm2d(64, track_running_stats=False),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64 * 16, 5),
).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def loss_of(params, x, y):
    return F.cross_entropy(functional_call(net, params, (x,)), y)


def task_loss(params, x_s, y_s, x_q, y_q):
    for _ in range(3):
        gradients = grad(loss_of)(params, x_s, y_s)
        params = {k: params[k] - 0.1 * gradients[k] for k in params}
    return loss_of(params, x_q, y_q)


for step in range(4):
    x_s, x_q = torch.randn(16, 25, 1, 32, 32, device="cuda"), torch.randn(16, 75, 1, 32, 32, device="cuda")
    y_s, y_q = torch.randint(0, 5, (16, 25), device="cuda"), torch.randint(0, 5, (16, 75), device="cuda")
    params = dict(net.named_parameters())
    losses = vmap(task_loss, (None, 0, 0, 0, 0))(params, x_s, y_s, x_q, y_q)
    loss = losses.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
