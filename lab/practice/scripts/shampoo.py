"""A Shampoo-like optimizer: Kronecker factors, inverse fourth roots by eigendecomposition, grafting."""

import torch
from torch import nn


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, every=2, epsilon=1e-6):
        super().__init__(params, dict(lr=lr, every=every, epsilon=epsilon))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                g, state = p.grad, self.state[p]
                if g.ndim != 2:
                    p.add_(g, alpha=-group["lr"])
                    continue
                if not state:
                    state["step"] = 0
                    state["factors"] = [group["epsilon"] * torch.eye(d, device=g.device) for d in g.shape]
                    state["roots"] = [torch.eye(d, device=g.device) for d in g.shape]
                state["factors"][0].add_(g @ g.T)
                state["factors"][1].add_(g.T @ g)
                if state["step"] % group["every"] == 0:
                    for i, factor in enumerate(state["factors"]):
                        values, vectors = torch.linalg.eigh(factor)
                        state["roots"][i] = (
                            vectors @ torch.diag(values.clamp(min=group["epsilon"]) ** -0.25) @ vectors.T
                        )
                state["step"] += 1
                update = state["roots"][0] @ g @ state["roots"][1]
                update *= g.norm() / (update.norm() + 1e-12)
                p.add_(update, alpha=-group["lr"])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
optimizer = Shampoo(model.parameters())
for step in range(5):
    x, y = torch.randn(32768, 1024, device="cuda"), torch.randn(32768, 512, device="cuda")
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
