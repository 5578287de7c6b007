"""Forward and backward of two micro-batches in one CUDA graph with fp16; the scaler and the optimizer run outside."""

import torch
import torchvision

torch.manual_seed(0)
model = torchvision.models.mobilenet_v3_large(num_classes=100).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
loss_of = torch.nn.CrossEntropyLoss()
images = torch.randn(2, 48, 3, 224, 224, device="cuda")
labels = torch.randint(0, 100, (2, 48), device="cuda")


def both():
    total = 0
    for part, wanted in zip(images, labels):
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            loss = loss_of(model(part.contiguous(memory_format=torch.channels_last)), wanted) / 2
        scaler.scale(loss).backward()
        total = total + loss.detach()
    return total


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        both()
        scaler.step(optimizer)
        scaler.update()
torch.cuda.current_stream().wait_stream(side)
optimizer.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = both()
for step in range(6):
    images.normal_()
    labels.random_(0, 100)
    graph.replay()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    scaler.step(optimizer)
    scaler.update()
    for parameter in model.parameters():
        parameter.grad.zero_()
print(loss.item())
