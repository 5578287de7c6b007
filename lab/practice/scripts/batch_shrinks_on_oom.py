"""A batch that is halved where memory runs out, under a limit that the script sets itself."""

import torch
from torch import nn

torch.manual_seed(0)
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(6 * 2**30 / total)
net = nn.Sequential(
    *[m for i in range(6) for m in (nn.Conv2d(3 if i == 0 else 128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.GELU())]
).cuda()
head = nn.Linear(128, 10).cuda()
optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()])
batch, made = 128, 0
while made < 4:
    try:
        x = torch.randn(batch, 3, 96, 96, device="cuda")
        loss = head(net(x).mean((2, 3))).square().mean()
        loss.backward()
        optimizer.step()
        made += 1
    except torch.cuda.OutOfMemoryError:
        x = loss = None
        torch.cuda.empty_cache()
        batch //= 2
    optimizer.zero_grad()
print(batch, loss.item())
