"""Curvature from Hutchinson's estimator every other step, a clipped second-order update by hand with foreach ops."""

import torch
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
config = BertConfig(
    hidden_size=512,
    num_hidden_layers=6,
    num_attention_heads=8,
    intermediate_size=2048,
    num_labels=3,
    attn_implementation="eager",
)
model = BertForSequenceClassification(config).cuda()
parameters = [p for p in model.parameters() if p.requires_grad]
momentum, curvature = [torch.zeros_like(p) for p in parameters], [torch.zeros_like(p) for p in parameters]
for step in range(4):
    ids, labels = torch.randint(0, 30000, (16, 128), device="cuda"), torch.randint(0, 3, (16,), device="cuda")
    loss = model(ids, labels=labels).loss
    if step % 2 == 0:
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        signs = [torch.randint_like(p, 2) * 2 - 1 for p in parameters]
        products = torch.autograd.grad(gradients, parameters, grad_outputs=signs)
        torch._foreach_mul_(curvature, 0.99)
        torch._foreach_addcmul_(curvature, products, signs, value=0.01)
        gradients = [g.detach() for g in gradients]
        del products, signs
    else:
        gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        torch._foreach_lerp_(momentum, gradients, 0.04)
        lower = torch._foreach_maximum(torch._foreach_mul(curvature, 0.05), 1e-12)
        update = torch._foreach_div(momentum, lower)
        torch._foreach_clamp_max_(update, 1.0)
        torch._foreach_clamp_min_(update, -1.0)
        torch._foreach_add_(parameters, update, alpha=-1e-4)
    del gradients, update, lower
print(loss.item())
