"""RAFT of torchvision: a correlation volume, twelve refinements, a sequence loss."""

import torch
from torchvision.models.optical_flow import raft_large

torch.manual_seed(0)
net = raft_large(weights=None).cuda().train()
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-4, weight_decay=1e-5, eps=1e-8)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-4, total_steps=10)
for step in range(3):
    first, second = torch.rand(2, 3, 368, 496, device="cuda"), torch.rand(2, 3, 368, 496, device="cuda")
    flow, valid = torch.randn(2, 2, 368, 496, device="cuda"), torch.rand(2, 368, 496, device="cuda") > 0.1
    predictions = net(first, second, num_flow_updates=12)
    loss = 0
    for i, guess in enumerate(predictions):
        distance = (guess - flow).abs()
        loss = loss + 0.8 ** (len(predictions) - i - 1) * (valid[:, None] * distance).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
print(loss.item())
