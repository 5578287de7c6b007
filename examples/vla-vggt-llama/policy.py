"""A robot policy: what the cameras see and what the instruction says, joined by a small transformer."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel
from vision import WIDTH, Tower

SCENARIOS = ("head", "llm", "all")
"""What is trained: the fusion and action head alone; the language model too; everything."""


class FusionHead(nn.Module):
    """Tokens of all views (batch, views, tokens, width) and of the words (batch, words, width) → an action."""

    def __init__(self, visual: int, language: int, width: int, layers: int, actions: int) -> None:
        super().__init__()
        self.visual = nn.Linear(visual, width)
        self.language = nn.Linear(language, width)
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, norm_first=True)
        self.fusion = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.action = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, actions))

    def forward(self, visual: Tensor, language: Tensor) -> Tensor:
        visual, language = visual.flatten(1, 2).float(), language.float()
        tokens = torch.cat([self.visual(visual), self.language(language)], dim=1)
        return self.action(self.fusion(tokens).mean(dim=1))


def load_language(folder: Path) -> nn.Module:
    """The language model in bf16: with its weights, or random ones where the folder holds only its configuration."""
    if any(folder.glob("*.safetensors")):
        return AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    return AutoModel.from_config(AutoConfig.from_pretrained(folder, use_cache=False), dtype=torch.bfloat16)


class Policy(nn.Module):
    def __init__(self, language: Path, *, image_size: int, width: int, layers: int, actions: int, train: str) -> None:
        super().__init__()
        self.vision = Tower(image_size)
        self.language = load_language(language)
        self.head = FusionHead(2 * WIDTH, self.language.config.hidden_size, width, layers, actions)
        self.trained = {"vision": train == "all", "language": train != "head", "head": True}
        for name, trained in self.trained.items():
            if not trained:
                self.get_submodule(name).requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Policy:
        """Frozen parts stay in evaluation mode."""
        for name, trained in self.trained.items():
            self.get_submodule(name).train(mode and trained)
        return self

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.trained["vision"] and torch.is_grad_enabled()):
            visual = self.vision(images)
        with torch.set_grad_enabled(self.trained["language"] and torch.is_grad_enabled()):
            hidden = self.language(input_ids=words).last_hidden_state
        return self.head(visual, hidden)
