"""The head and the loss as one custom function, in chunks, its gradients made in forward (as fused losses do)."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import StableLmConfig, StableLmModel


class ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunks):
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        total = hidden.new_zeros((), dtype=torch.float32)
        for rows, wanted, out in zip(hidden.chunk(chunks), targets.chunk(chunks), grad_hidden.chunk(chunks)):
            logits = (rows @ weight.T).float()
            total += F.cross_entropy(logits, wanted, reduction="sum")
            logits = logits.softmax(-1)
            logits[torch.arange(len(wanted), device=wanted.device), wanted] -= 1
            logits = logits.div_(len(targets)).to(hidden.dtype)
            torch.mm(logits, weight, out=out)
            grad_weight.addmm_(logits.T.float(), rows.float())
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return total / len(targets)

    @staticmethod
    def backward(ctx, grad):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad, grad_weight * grad, None, None


torch.manual_seed(0)
config = StableLmConfig(
    vocab_size=100352, hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=16,
    num_key_value_heads=16, use_cache=False,
)  # fmt: skip
model = StableLmModel(config).to("cuda", torch.bfloat16)
head = nn.Linear(1024, 100352, bias=False, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4, foreach=True)
for step in range(4):
    ids = torch.randint(0, 100352, (4, 1024), device="cuda")
    hidden = model(ids).last_hidden_state[:, :-1].reshape(-1, 1024)
    loss = ChunkedLoss.apply(hidden, head.weight, ids[:, 1:].flatten(), 8)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
