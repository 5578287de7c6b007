"""A step with autocast and a capturable optimizer captured in one CUDA graph, replayed with new data; eager evaluation between."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    *[m for _ in range(8) for m in (nn.Linear(2048, 2048), nn.LayerNorm(2048), nn.GELU(), nn.Dropout(0.1))],
    nn.Linear(2048, 512),
).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, capturable=True)
x, y = torch.randn(1024, 2048, device="cuda"), torch.randint(0, 512, (1024,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for i in range(4):
    x.copy_(torch.randn(1024, 2048))
    graph.replay()
    if i == 1:
        net.eval()
        with torch.no_grad():
            print(net(torch.randn(4096, 2048, device="cuda")).mean().item())
        net.train()
print(loss.item())
