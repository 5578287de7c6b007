"""L-BFGS with a line search: a closure that is called several times a step, a history of gradients."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(512, 2048), nn.Tanh(), nn.Linear(2048, 2048), nn.Tanh(), nn.Linear(2048, 64)).cuda()
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=6, history_size=8, line_search_fn="strong_wolfe")
x, y = torch.randn(4096, 512, device="cuda"), torch.randn(4096, 64, device="cuda")


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    return loss


for step in range(4):
    loss = optimizer.step(closure)
print(loss.item())
