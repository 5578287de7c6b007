"""DPO: a policy and a frozen reference on pairs of chosen and rejected answers."""

import copy

import torch
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(0)
config = Qwen2Config(
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=10,
    num_attention_heads=14,
    num_key_value_heads=2,
    vocab_size=50000,
    use_cache=False,
)
policy = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-7)


def log_probabilities(model, ids, prompt):
    logits = model(ids).logits[:, :-1].float()
    labels = ids[:, 1:].clone()
    mask = torch.arange(labels.shape[1], device=ids.device) >= prompt - 1
    chosen = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    return (chosen * mask).sum(-1)


for step in range(4):
    length = 384 + 64 * step
    prompt_ids = torch.randint(0, config.vocab_size, (4, 128))
    pairs = torch.cat(
        [torch.cat([prompt_ids, torch.randint(0, config.vocab_size, (4, length - 128))], 1) for _ in range(2)]
    ).cuda()
    with torch.no_grad():
        expected = log_probabilities(reference, pairs, 128)
    actual = log_probabilities(policy, pairs, 128)
    chosen, rejected = (actual - expected).chunk(2)
    loss = -F.logsigmoid(0.1 * (chosen - rejected)).mean()
    accuracy = (chosen > rejected).float().mean().item()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
    optimizer.step()
print(loss.item())
