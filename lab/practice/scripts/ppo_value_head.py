"""RLHF with PPO: a policy with a value head, a frozen reference, generalized advantages, minibatches."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


class PolicyWithValue(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = GPT2LMHeadModel(config)
        self.value = nn.Sequential(nn.Dropout(0.1), nn.Linear(config.n_embd, 1))

    def forward(self, ids):
        output = self.model(ids, output_hidden_states=True, use_cache=False)
        return output.logits, self.value(output.hidden_states[-1]).squeeze(-1)


def log_probabilities(logits, ids):
    return F.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None]).squeeze(-1)


torch.manual_seed(0)
config = GPT2Config(n_layer=6, pad_token_id=50256)
policy, reference = PolicyWithValue(config).cuda(), GPT2LMHeadModel(config).cuda().eval()
optimizer = torch.optim.Adam(policy.parameters(), lr=1.4e-5)
for step in range(4):
    queries = torch.randint(0, 50000, (16, 64), device="cuda")
    with torch.no_grad():
        ids = policy.model.generate(
            queries,
            attention_mask=torch.ones_like(queries),
            max_new_tokens=48,
            min_new_tokens=48,
            do_sample=True,
            top_p=0.9,
        )
        logits, values = policy(ids)
        old = log_probabilities(logits, ids)
        frozen = log_probabilities(reference(ids).logits, ids)
        rewards = -0.2 * (old - frozen)
        rewards[:, -1] += torch.randn(16, device="cuda")
        values = values[:, :-1]
        advantages, last = [], 0
        for t in reversed(range(rewards.shape[1])):
            following = values[:, t + 1] if t < rewards.shape[1] - 1 else 0.0
            last = rewards[:, t] + following - values[:, t] + 0.95 * last
            advantages.append(last)
        advantages = torch.stack(advantages[::-1]).transpose(0, 1)
        returns = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for rows in torch.randperm(16).split(8):
        logits, value = policy(ids[rows])
        ratio = (log_probabilities(logits, ids[rows]) - old[rows]).exp()
        a = advantages[rows]
        policy_loss = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean()
        value_loss = F.mse_loss(value[:, :-1], returns[rows])
        loss = policy_loss + 0.1 * value_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
print(loss.item())
