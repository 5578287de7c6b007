"""Parts of a network as graphed callables, with AMP and a branch that stays eager."""

import torch
from torch import nn

torch.manual_seed(0)
N, D_in, H, D_out = 4096, 1024, 4096, 1024
module1 = nn.Sequential(nn.Linear(D_in, H), nn.ReLU(), nn.Linear(H, H)).cuda()
module2 = nn.Sequential(nn.Linear(H, H), nn.Dropout(p=0.2), nn.Linear(H, D_out)).cuda()
head = nn.Linear(D_out, 10).cuda()
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD([*module1.parameters(), *module2.parameters(), *head.parameters()], lr=0.1, momentum=0.9)

x = torch.randn(N, D_in, device="cuda")
h = torch.randn(N, H, device="cuda", requires_grad=True)
module1, module2 = torch.cuda.make_graphed_callables((module1, module2), ((x,), (h,)))
for step in range(6):
    data = torch.randn(N, D_in, device="cuda")
    target = torch.randint(0, 10, (N,), device="cuda")
    optimizer.zero_grad(set_to_none=True)
    loss = loss_fn(head(module2(module1(data))), target)
    loss.backward()
    optimizer.step()
print(loss.item())
