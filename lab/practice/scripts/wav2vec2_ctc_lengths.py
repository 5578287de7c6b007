"""wav2vec 2.0 fine-tuned with CTC on audio of varying lengths: masks of SpecAugment, a frozen feature encoder."""

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

torch.manual_seed(0)
config = Wav2Vec2Config(
    hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048, vocab_size=40,
    mask_time_prob=0.1, ctc_loss_reduction="mean", ctc_zero_infinity=True,
)  # fmt: skip
model = Wav2Vec2ForCTC(config).cuda()
model.freeze_feature_encoder()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
model.train()
for step, seconds in enumerate((6, 11, 3, 9, 6)):
    audio = torch.randn(8, 16000 * seconds).cuda()
    mask = torch.ones_like(audio, dtype=torch.long)
    mask[4:, 16000 * seconds // 2 :] = 0
    labels = torch.randint(1, 40, (8, 4 * seconds)).cuda()
    with torch.autocast("cuda", torch.float16):
        loss = model(audio, attention_mask=mask, labels=labels).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print(loss.item())
