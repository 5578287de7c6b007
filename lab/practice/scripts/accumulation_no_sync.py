"""DDP in a world of one: gradients accumulated with no_sync, then one step."""

import contextlib
import os

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", str(29500 + os.getpid() % 1000))
dist.init_process_group("nccl", rank=0, world_size=1)
torch.manual_seed(0)
model = DistributedDataParallel(torchvision.models.vit_b_16().cuda(), device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    for micro in range(4):
        images = torch.randn(32, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 1000, (32,), device="cuda")
        context = model.no_sync() if micro < 3 else contextlib.nullcontext()
        with context, torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels) / 4
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
dist.destroy_process_group()
