"""ANIL: only the head adapts, all tasks at once by vmap over torch.func.grad; the body learns through it."""

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
WAYS, SHOTS, QUERIES, TASKS = 5, 5, 15, 4
body = torchvision.models.resnet18(norm_layer=lambda width: nn.GroupNorm(8, width))
body.fc = nn.Identity()
body = body.cuda()
head = nn.Linear(512, WAYS, device="cuda")
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)


def head_loss(parameters, features, labels):
    return F.cross_entropy(functional_call(head, parameters, (features,)), labels)


def adapted_loss(parameters, support, labels, query, wanted):
    for _ in range(5):
        gradients = grad(head_loss)(parameters, support, labels)
        parameters = {name: p - 0.1 * gradients[name] for name, p in parameters.items()}
    return head_loss(parameters, query, wanted)


support_labels = torch.arange(WAYS, device="cuda").repeat_interleave(SHOTS).repeat(TASKS, 1)
query_labels = torch.arange(WAYS, device="cuda").repeat_interleave(QUERIES).repeat(TASKS, 1)
for step in range(4):
    support = torch.randn(TASKS, WAYS * SHOTS, 3, 84, 84, device="cuda")
    query = torch.randn(TASKS, WAYS * QUERIES, 3, 84, 84, device="cuda")
    both = body(torch.cat([support, query], 1).flatten(0, 1)).view(TASKS, -1, 512)
    first, second = both.split([WAYS * SHOTS, WAYS * QUERIES], 1)
    losses = vmap(adapted_loss, in_dims=(None, 0, 0, 0, 0))(
        dict(head.named_parameters()), first, support_labels, second, query_labels
    )
    loss = losses.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
