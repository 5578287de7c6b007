"""IPO: log probabilities of the reference are taken first, kept on the host, then the policy alone is trained."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import FalconConfig, FalconForCausalLM


def sequence_log_probability(logits, labels):
    labels = labels[:, 1:]
    mask = labels != -100
    logp = -F.cross_entropy(logits[:, :-1].transpose(1, 2), labels.clamp(min=0), reduction="none")
    return (logp * mask).sum(1) / mask.sum(1)


torch.manual_seed(0)
config = FalconConfig(
    vocab_size=40000, hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, multi_query=True,
    new_decoder_architecture=False, parallel_attn=True, bias=False, alibi=False,
)  # fmt: skip
model = FalconForCausalLM(config).cuda()
ids = torch.randint(1, 40000, (24, 2, 320))
labels = ids.clone()
labels[:, :, :96] = -100
model.eval()
reference = []
with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
    for both, targets in DataLoader(TensorDataset(ids, labels), batch_size=8):
        out = model(both.flatten(0, 1).cuda(), use_cache=False).logits
        reference.append(sequence_log_probability(out, targets.flatten(0, 1).cuda()).view(-1, 2).cpu())
        del out
reference = torch.cat(reference)
model.train()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
loader = DataLoader(TensorDataset(ids, labels, reference), batch_size=4, shuffle=True)
for step, (both, targets, expected) in enumerate(loader):
    with torch.autocast("cuda", torch.bfloat16):
        out = model(both.flatten(0, 1).cuda(), use_cache=False).logits
    actual = sequence_log_probability(out, targets.flatten(0, 1).cuda()).view(-1, 2)
    expected = expected.cuda()
    margin = (actual[:, 0] - actual[:, 1]) - (expected[:, 0] - expected[:, 1])
    loss = ((margin - 1 / (2 * 0.1)) ** 2).mean()
    loss.backward()
    if step % 2:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print(loss.item())
