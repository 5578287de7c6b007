"""Two branches on two streams, joined by events; the results are handed on without record_stream."""

import torch
from torch import nn

torch.manual_seed(0)
left = nn.Sequential(nn.Linear(4096, 8192), nn.GELU(), nn.Linear(8192, 4096)).cuda()
right = nn.Sequential(nn.Linear(4096, 8192), nn.GELU(), nn.Linear(8192, 4096)).cuda()
optimizer = torch.optim.Adam([*left.parameters(), *right.parameters()], lr=1e-4)
first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
for step in range(6):
    x = torch.randn(8192, 4096, device="cuda")
    ready = torch.cuda.current_stream().record_event()
    with torch.cuda.stream(first):
        first.wait_event(ready)
        a = left(x)
        done_a = first.record_event()
    with torch.cuda.stream(second):
        second.wait_event(ready)
        b = right(x)
        done_b = second.record_event()
    torch.cuda.current_stream().wait_event(done_a)
    torch.cuda.current_stream().wait_event(done_b)
    loss = (a - b).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print(loss.item())
