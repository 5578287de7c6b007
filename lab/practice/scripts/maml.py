"""MAML with second-order gradients through five inner steps."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
shapes = [(64, 3, 3, 3), (64,), (64, 64, 3, 3), (64,), (64, 64, 3, 3), (64,), (64, 64, 3, 3), (64,), (5, 64 * 25), (5,)]
theta = [(0.05 * torch.randn(s, device=device)).requires_grad_() for s in shapes]
meta = torch.optim.Adam(theta, lr=1e-3)


def forward(x, w):
    for i in range(4):
        x = F.conv2d(x, w[2 * i], w[2 * i + 1], padding=1)
        x = F.batch_norm(x, None, None, training=True)
        x = F.max_pool2d(F.relu(x), 2)
    return F.linear(x.flatten(1), w[8], w[9])


for step in range(4):
    meta.zero_grad()
    total = 0.0
    for task in range(4):
        support, query = torch.randn(25, 3, 84, 84, device=device), torch.randn(75, 3, 84, 84, device=device)
        support_y = torch.arange(5, device=device).repeat_interleave(5)
        query_y = torch.arange(5, device=device).repeat_interleave(15)
        fast = theta
        for _ in range(5):
            loss = F.cross_entropy(forward(support, fast), support_y)
            grads = torch.autograd.grad(loss, fast, create_graph=True)
            fast = [w - 0.01 * g for w, g in zip(fast, grads)]
        total = total + F.cross_entropy(forward(query, fast), query_y)
    (total / 4).backward()
    meta.step()
print(total.item())
