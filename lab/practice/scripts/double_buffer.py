"""Two pinned buffers and two device buffers: copies in and out on side streams, guarded by events."""

import torch
import torchvision

torch.manual_seed(0)
model = torchvision.models.efficientnet_b0(num_classes=100).cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
incoming, outgoing = torch.cuda.Stream(), torch.cuda.Stream()
host = [torch.empty(96, 3, 224, 224).pin_memory() for _ in range(2)]
results = torch.empty(8, 96, 100).pin_memory()
copied = [torch.cuda.Event() for _ in range(2)]
for step in range(8):
    slot = step % 2
    host[slot].normal_()
    with torch.cuda.stream(incoming):
        images = host[slot].to("cuda", non_blocking=True)
        images = images.mul(0.5).clamp_(-3, 3)
        copied[slot].record(incoming)
    torch.cuda.current_stream().wait_event(copied[slot])
    images.record_stream(torch.cuda.current_stream())
    labels = torch.randint(0, 100, (96,), device="cuda")
    logits = model(images)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    probabilities = logits.detach().softmax(1)
    outgoing.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(outgoing):
        results[step].copy_(probabilities, non_blocking=True)
    probabilities.record_stream(outgoing)
    copied[slot].synchronize()
torch.cuda.synchronize()
print(loss.item())
