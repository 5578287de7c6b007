"""Activations offloaded to pinned memory on a side stream in forward and prefetched in backward."""

import torch
from torch import nn


class Offload:
    def __init__(self):
        self.stream = torch.cuda.Stream()

    def pack(self, tensor):
        if not tensor.is_cuda or tensor.numel() < 1_000_000 or isinstance(tensor, nn.Parameter):
            return tensor
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.stream)
        return host, self.stream.record_event()

    def unpack(self, packed):
        if torch.is_tensor(packed):
            return packed
        host, event = packed
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(event)
            tensor = host.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.stream)
        tensor.record_stream(torch.cuda.current_stream())
        return tensor


torch.manual_seed(0)
blocks = nn.ModuleList(
    nn.Sequential(nn.LayerNorm(2048), nn.Linear(2048, 8192), nn.SiLU(), nn.Linear(8192, 2048)) for _ in range(6)
).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4, foreach=False)
offload = Offload()
for step in range(4):
    x = torch.randn(8192, 2048, device="cuda", dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(offload.pack, offload.unpack):
        for block in blocks:
            x = x + block(x)
    loss = x.float().square().mean()
    loss.backward()
    torch.cuda.synchronize()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
