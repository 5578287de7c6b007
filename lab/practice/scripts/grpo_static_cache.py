"""GRPO on Qwen3: answers of a static cache, log probabilities in micro-batches, no critic and no reference."""

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

torch.manual_seed(0)
config = Qwen3Config(
    hidden_size=768, intermediate_size=2304, num_hidden_layers=10, num_attention_heads=12, num_key_value_heads=4,
    head_dim=64, vocab_size=60000, pad_token_id=0, eos_token_id=1, bos_token_id=2,
)  # fmt: skip
policy = Qwen3ForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-6, weight_decay=0.0)
sampling = GenerationConfig(
    do_sample=True, top_p=0.9, temperature=0.8, max_new_tokens=48, min_new_tokens=48, pad_token_id=0, eos_token_id=1,
    cache_implementation="static", disable_compile=True, num_return_sequences=6,
)  # fmt: skip


def selective_log_softmax(logits, index):
    picked = torch.gather(logits, -1, index.unsqueeze(-1)).squeeze(-1)
    return picked - torch.stack([torch.logsumexp(row, -1) for row in logits])


for step in range(3):
    prompts = torch.randint(3, 60000, (4, 64 + 32 * step), device="cuda")
    with torch.no_grad():
        rollout = policy.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=sampling)
    start = prompts.shape[1]
    reward = (rollout[:, start:] % 5 == 0).float().sum(1).view(4, 6)
    advantage = ((reward - reward.mean(1, True)) / (reward.std(1, keepdim=True) + 1e-6)).view(-1)
    old = []
    with torch.no_grad():
        for part in rollout.split(8):
            logits = policy(part, logits_to_keep=part.shape[1] - start + 1).logits[:, :-1].float()
            old.append(selective_log_softmax(logits, part[:, start:]))
    for part, before, gain in zip(rollout.split(8), old, advantage.split(8)):
        logits = policy(part, logits_to_keep=part.shape[1] - start + 1).logits[:, :-1].float()
        ratio = torch.exp(selective_log_softmax(logits, part[:, start:]) - before)
        clipped = torch.clamp(ratio, 0.8, 1.28)
        loss = -torch.min(ratio * gain[:, None], clipped * gain[:, None]).mean() / 3
        loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(loss.item())
