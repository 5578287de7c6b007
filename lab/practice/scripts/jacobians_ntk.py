"""Neural tangent kernel and per-sample Jacobians with jacrev, jacfwd and vmap."""

import torch
from torch import nn
from torch.func import functional_call, jacfwd, jacrev, vmap

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 10)
).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)


def single(params, x):
    return functional_call(net, params, (x.unsqueeze(0),)).squeeze(0)


for step in range(4):
    params = {k: v.detach() for k, v in net.named_parameters()}
    a, b = torch.randn(40, 3, 32, 32, device="cuda"), torch.randn(20, 3, 32, 32, device="cuda")
    ja = vmap(jacrev(single), (None, 0))(params, a)
    jb = vmap(jacrev(single), (None, 0))(params, b)
    kernel = sum(torch.einsum("Naf,Mbf->NMab", x.flatten(2), y.flatten(2)) for x, y in zip(ja.values(), jb.values()))
    del ja, jb
    sensitivity = vmap(jacfwd(single, argnums=1), (None, 0), chunk_size=4)(params, b[:8])
    loss = nn.functional.cross_entropy(net(a), torch.randint(0, 10, (40,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), kernel.shape, sensitivity.shape)
