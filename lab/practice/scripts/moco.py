"""MoCo: a momentum encoder and a queue of negatives."""

import torch
import torch.nn.functional as F
import torchvision
from torch import nn


class MoCo(nn.Module):
    def __init__(self, dim=128, size=65536, momentum=0.999, temperature=0.07):
        super().__init__()
        self.size, self.momentum, self.temperature = size, momentum, temperature
        self.encoder_q = torchvision.models.resnet50(num_classes=dim)
        self.encoder_k = torchvision.models.resnet50(num_classes=dim)
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data.copy_(q.data)
            k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        pointer = int(self.pointer)
        self.queue[:, pointer : pointer + keys.shape[0]] = keys.T
        self.pointer[0] = (pointer + keys.shape[0]) % self.size

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            for a, b in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
                b.data = b.data * self.momentum + a.data * (1.0 - self.momentum)
            order = torch.randperm(im_k.shape[0], device=im_k.device)
            k = F.normalize(self.encoder_k(im_k[order]), dim=1)[torch.argsort(order)]
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([positive, negative], dim=1) / self.temperature
        self.enqueue(k)
        return logits, torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)


torch.manual_seed(0)
model = MoCo().cuda()
optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
for step in range(4):
    views = [torch.randn(64, 3, 224, 224).cuda(non_blocking=True) for _ in range(2)]
    logits, labels = model(*views)
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    top = logits.topk(5, 1).indices.eq(labels[:, None]).float().sum().item()
print(loss.item())
