"""Speech models: convolutions over the waveform, transformers and conformers above them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train


def _ctc(model: nn.Module, batch: Batch) -> Any:
    outputs = model(**batch)
    return outputs.loss, outputs


def _waveforms(batch: int, seconds: float, characters: int) -> Batch:
    return {
        "input_values": torch.randn(batch, int(seconds * 16000)),
        "labels": torch.randint(1, characters, (batch, 60)),
    }


def wav2vec2(
    *, batch: int = 9, seconds: float = 11.3, precision: str = "fp32", optimizer: str = "adamw",
    freeze_features: bool = True, layers: int = 12, style: str = "function", conformer: bool = False,
) -> Step:  # fmt: skip
    """wav2vec 2.0 base with CTC; layer drop is off, since it would choose layers at random."""
    import transformers

    kind = "Wav2Vec2Conformer" if conformer else "Wav2Vec2"
    extra: dict[str, Any] = {"position_embeddings_type": "relative", "hidden_act": "swish"} if conformer else {}
    config = getattr(transformers, f"{kind}Config")(
        num_hidden_layers=layers, layerdrop=0.0, mask_time_prob=0.0, vocab_size=32, ctc_zero_infinity=True, **extra
    )
    model = getattr(transformers, f"{kind}ForCTC")(config).cuda().train()
    if freeze_features:
        model.freeze_feature_encoder()
    chosen = make_optimizer(optimizer, [p for p in model.parameters() if p.requires_grad])
    return train(model, _waveforms(batch, seconds, 32), _ctc, chosen, precision=precision, style=style)


def whisper(
    *, batch: int = 6, target: int = 120, precision: str = "bf16", optimizer: str = "adamw", style: str = "loop",
    width: int = 768, layers: int = 12, heads: int = 12,
) -> Step:  # fmt: skip
    """Whisper-small on 30-second windows."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, vocab_size=51865,
        use_cache=False, apply_spec_augment=False,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).cuda().train()
    data = {"input_features": torch.randn(batch, 80, 3000), "labels": torch.randint(0, 50000, (batch, target))}
    return train(model, data, _ctc, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, a gated depthwise convolution, the other half."""

    def __init__(self, width: int, heads: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.halves = nn.ModuleList([self._feed_forward(width, dropout) for _ in range(2)])
        self.attention_norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.convolution_norm = nn.LayerNorm(width)
        self.convolution = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1), nn.GLU(dim=1),
            nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width), nn.BatchNorm1d(width), nn.SiLU(),
            nn.Conv1d(width, width, 1), nn.Dropout(dropout),
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)

    @staticmethod
    def _feed_forward(width: int, dropout: float) -> nn.Module:
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(dropout),
            nn.Linear(4 * width, width), nn.Dropout(dropout),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.halves[0](x)
        y = self.attention_norm(x)
        x = x + self.dropout(self.attention(y, y, y, key_padding_mask=padding, need_weights=False)[0])
        x = x + self.convolution(self.convolution_norm(x).transpose(1, 2)).transpose(1, 2)
        return self.norm(x + 0.5 * self.halves[1](x))


def conformer(
    *, batch: int = 16, frames: int = 800, width: int = 256, layers: int = 14, precision: str = "fp32",
    optimizer: str = "adamw",
) -> Step:  # fmt: skip
    """A conformer with CTC over 80 mel bands, its recordings padded to a common length."""

    class Recogniser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Sequential(nn.Conv1d(80, width, 3, stride=2, padding=1), nn.ReLU())
            self.blocks = nn.ModuleList([ConformerBlock(width, 4, 31, 0.1) for _ in range(layers)])
            self.output = nn.Linear(width, 128)

        def forward(self, mel: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            x = self.narrow(mel).transpose(1, 2)
            padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
            for block in self.blocks:
                x = block(x, padding)
            return self.output(x).log_softmax(-1)

    model = Recogniser().cuda().train()
    data = {
        "mel": torch.randn(batch, 80, frames), "targets": torch.randint(1, 128, (batch, 70)),
        "lengths": torch.linspace(0.7, 1.0, batch).mul(frames // 2).long(),
    }  # fmt: skip

    def forward(model: nn.Module, batch: Batch) -> Any:
        scores = model(batch["mel"], batch["lengths"]).transpose(0, 1)
        return F.ctc_loss(scores.float(), batch["targets"], batch["lengths"], torch.full_like(batch["lengths"], 70))

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision)
