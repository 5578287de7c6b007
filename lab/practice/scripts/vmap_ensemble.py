"""An ensemble of networks trained at once: stack_module_state, functional_call, vmap."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


torch.manual_seed(0)
models = [Net().cuda() for _ in range(12)]
params, buffers = stack_module_state(models)
skeleton = copy.deepcopy(models[0]).to("meta")
optimizer = torch.optim.Adam(params.values(), lr=1e-3)


def forward(params, buffers, x):
    return functional_call(skeleton, (params, buffers), (x,))


for step in range(6):
    x = torch.randn(12, 2048, 1, 28, 28, device="cuda")
    y = torch.randint(0, 10, (12, 2048), device="cuda")
    output = vmap(forward)(params, buffers, x)
    loss = vmap(F.cross_entropy)(output, y).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    shared = torch.randn(4096, 1, 28, 28, device="cuda")
    votes = vmap(forward, in_dims=(0, 0, None))(params, buffers, shared).softmax(-1).mean(0)
print(loss.item())
