"""Forward and backward captured for two batch sizes in graphs that share one memory pool; the optimizer stays eager."""

import torch
import torchvision

torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=100).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
pool = torch.cuda.graph_pool_handle()
captured = {}
for size in (128, 64):
    images = torch.randn(size, 3, 128, 128, device="cuda")
    labels = torch.randint(0, 100, (size,), device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            torch.nn.functional.cross_entropy(model(images), labels).backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for p in model.parameters():
            p.grad.zero_()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
    captured[size] = graph, images, labels, loss
for step in range(6):
    graph, images, labels, loss = captured[128 if step % 2 == 0 else 64]
    images.copy_(torch.randn(images.shape, device="cuda"))
    labels.copy_(torch.randint(0, 100, labels.shape, device="cuda"))
    graph.replay()
    optimizer.step()
torch.cuda.synchronize()
print(loss.item())
