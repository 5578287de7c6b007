"""Minimum risk training of T5: candidates by beam search, their scores again with gradients."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

torch.manual_seed(0)
config = T5Config(
    d_model=512, d_ff=1024, num_layers=6, num_heads=8, vocab_size=32128, decoder_start_token_id=0, pad_token_id=0,
    eos_token_id=1,
)  # fmt: skip
model = T5ForConditionalGeneration(config).cuda()
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-3)
beams, length = 4, 24
for step in range(3):
    source = torch.randint(3, 32000, (8, 96), device="cuda")
    model.eval()
    with torch.no_grad():
        candidates = model.generate(
            source,
            num_beams=beams,
            num_return_sequences=beams,
            min_new_tokens=length,
            max_new_tokens=length,
            do_sample=False,
        )[:, 1:].contiguous()
    model.train()
    repeated = source.repeat_interleave(beams, 0)
    logits = model(input_ids=repeated, labels=candidates).logits
    scores = torch.log_softmax(logits, -1).gather(-1, candidates[..., None]).squeeze(-1).mean(-1).view(8, beams)
    risk = (candidates % 5 == 0).float().mean(-1).view(8, beams)
    loss = (scores.softmax(-1) * risk).sum(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
