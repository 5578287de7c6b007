"""A vision-language model by hand: a frozen SigLIP tower, a resampler, a Qwen2 that sees its outputs as a prefix."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM, SiglipVisionConfig, SiglipVisionModel


class Resampler(nn.Module):
    def __init__(self, seen, width, queries=64):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, width) * 0.02)
        self.keys, self.norm = nn.Linear(seen, width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.out = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, patches):
        keys = self.norm(self.keys(patches))
        queries = self.queries.expand(len(patches), -1, -1)
        return self.out(self.attention(queries, keys, keys)[0])


torch.manual_seed(0)
tower = SiglipVisionModel(
    SiglipVisionConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=12,
                       image_size=224, patch_size=16)
).to("cuda", torch.bfloat16).eval().requires_grad_(False)  # fmt: skip
language = Qwen2ForCausalLM(
    Qwen2Config(hidden_size=896, intermediate_size=4864, num_hidden_layers=8, num_attention_heads=14,
                num_key_value_heads=2, vocab_size=50000, tie_word_embeddings=True)
).to("cuda", torch.bfloat16)  # fmt: skip
resampler = Resampler(768, 896).to("cuda", torch.bfloat16)
groups = [{"params": resampler.parameters(), "lr": 1e-3}, {"params": language.parameters(), "lr": 1e-5}]
optimizer = torch.optim.AdamW(groups, fused=True)
for step in range(4):
    pictures = torch.rand(8, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(0, 50000, (8, 160 + 64 * (step % 2)), device="cuda")
    with torch.no_grad():
        patches = tower(pixel_values=pictures).last_hidden_state
    prefix = resampler(patches)
    embeds = torch.cat([prefix, language.get_input_embeddings()(ids)], 1)
    hidden = language.model(inputs_embeds=embeds, use_cache=False).last_hidden_state[:, prefix.shape[1] - 1 : -1]
    loss = F.cross_entropy(language.lm_head(hidden).flatten(0, 1).float(), ids.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_([*language.parameters(), *resampler.parameters()], 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
