"""Clips of GoPro's layout (`CLIP/blur/*.png` beside `CLIP/sharp/*.png`), or random ones when there is no data."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.io import ImageReadMode, read_image


class RandomClips(Dataset):
    """Noise of the right shape; enough to see how much memory and time training takes."""

    def __init__(self, frames: int, crop: int, length: int) -> None:
        self.shape, self.length = (frames, 3, crop, crop), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"L": torch.rand(self.shape), "H": torch.rand(self.shape)}


class GoPro(Dataset):
    """Consecutive frames, blurred and sharp, cropped at the same random place."""

    def __init__(self, folder: Path, frames: int, crop: int) -> None:
        self.frames, self.crop = frames, crop
        self.starts: list[list[Path]] = []
        for clip in sorted(path for path in folder.iterdir() if (path / "blur").is_dir()):
            files = sorted((clip / "blur").glob("*.png"))
            self.starts += [files[i : i + frames] for i in range(len(files) - frames + 1)]
        if not self.starts:
            raise SystemExit(f"{folder} holds no clip with {frames} frames in CLIP/blur/*.png")

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        blurred = self.starts[index]
        sharp = [path.parent.parent / "sharp" / path.name for path in blurred]
        clip = torch.stack([read_image(str(path), ImageReadMode.RGB) for path in (*blurred, *sharp)])
        top, left = (int(torch.randint(size - self.crop + 1, ())) for size in clip.shape[-2:])
        clip = clip[..., top : top + self.crop, left : left + self.crop].float() / 255
        return {"L": clip[: self.frames], "H": clip[self.frames :]}
