"""Sharpness-aware minimization around a GaLore-like optimizer: gradients projected by SVD, states in low rank."""

import torch
from transformers import BertConfig, BertForSequenceClassification


class GaLoreAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, rank=64, every=2):
        super().__init__(params, dict(lr=lr, rank=rank, every=every))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, g = self.state[p], p.grad
                state.setdefault("step", 0)
                if g.ndim == 2 and min(g.shape) > group["rank"] and max(g.shape) < 4096:
                    if state["step"] % group["every"] == 0:
                        u, _, _ = torch.linalg.svd(g.float(), full_matrices=False)
                        state["basis"] = u[:, : group["rank"]].contiguous()
                    g = state["basis"].T @ g
                if "m" not in state:
                    state["m"], state["v"] = torch.zeros_like(g), torch.zeros_like(g)
                state["step"] += 1
                state["m"].mul_(0.9).add_(g, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(g, g, value=0.001)
                update = state["m"] / (state["v"].sqrt() + 1e-8)
                if g.shape != p.shape:
                    update = state["basis"] @ update
                p.add_(update, alpha=-group["lr"])


torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(num_hidden_layers=6, num_labels=5)).cuda()
optimizer = GaLoreAdam(model.parameters())
for step in range(4):
    ids, y = torch.randint(0, 30000, (32, 256), device="cuda"), torch.randint(0, 5, (32,), device="cuda")
    model(ids, labels=y).loss.backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        moved = {}
        for p in model.parameters():
            if p.grad is not None:
                moved[p] = 0.05 * p.grad / (norm + 1e-12)
                p.add_(moved[p])
    model.zero_grad()
    loss = model(ids, labels=y).loss
    loss.backward()
    with torch.no_grad():
        for p, e in moved.items():
            p.sub_(e)
    optimizer.step()
    model.zero_grad()
print(loss.item())
