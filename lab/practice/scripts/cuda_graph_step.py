"""A whole training step captured in a CUDA graph after a warm-up on a side stream."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    *[nn.Sequential(nn.Linear(2048, 2048), nn.LayerNorm(2048), nn.GELU(), nn.Dropout(0.1)) for _ in range(12)]
).cuda()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
static_x = torch.randn(4096, 2048, device="cuda")
static_y = torch.randn(4096, 2048, device="cuda")

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        criterion(model(static_x), static_y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    static_loss = criterion(model(static_x), static_y)
    static_loss.backward()
    optimizer.step()

for step in range(5):
    static_x.copy_(torch.randn(4096, 2048))
    static_y.copy_(torch.randn(4096, 2048))
    graph.replay()
torch.cuda.synchronize()
print(static_loss.item())
