"""What data sets ask of OpenCV, which is too large to bring along: read, resize, turn and recolour pictures of 8 bits
or floats, as NumPy and Pillow do it. Pixels differ a little from OpenCV's; sizes and types do not."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

IMREAD_UNCHANGED, IMREAD_GRAYSCALE, IMREAD_COLOR, IMREAD_ANYDEPTH, IMREAD_IGNORE_ORIENTATION = -1, 0, 1, 2, 128
INTER_NEAREST, INTER_LINEAR, INTER_CUBIC, INTER_AREA, INTER_LANCZOS4 = range(5)
BORDER_CONSTANT, BORDER_REPLICATE, BORDER_REFLECT, BORDER_WRAP, BORDER_REFLECT_101 = range(5)
COLOR_BGR2RGB = COLOR_RGB2BGR = 4
COLOR_BGR2GRAY, COLOR_RGB2GRAY, COLOR_GRAY2BGR, COLOR_GRAY2RGB = 6, 7, 8, 8
COLOR_BGR2HSV, COLOR_RGB2HSV, COLOR_HSV2BGR, COLOR_HSV2RGB = 40, 41, 54, 55
FONT_HERSHEY_SIMPLEX = 0
_KINDS = {
    INTER_NEAREST: Image.Resampling.NEAREST, INTER_LINEAR: Image.Resampling.BILINEAR,
    INTER_CUBIC: Image.Resampling.BICUBIC, INTER_AREA: Image.Resampling.BOX, INTER_LANCZOS4: Image.Resampling.LANCZOS,
}  # fmt: skip
_PADDING = {
    BORDER_CONSTANT: "constant", BORDER_REPLICATE: "edge", BORDER_REFLECT: "symmetric", BORDER_WRAP: "wrap",
    BORDER_REFLECT_101: "reflect",
}  # fmt: skip


class ocl:
    @staticmethod
    def setUseOpenCL(flag: bool) -> None: ...


def rotate(picture: np.ndarray, rotateCode: int) -> np.ndarray:
    return np.ascontiguousarray(np.rot90(picture, -1 - rotateCode))


def setNumThreads(count: int) -> None: ...


def imread(path: Any, flags: int = IMREAD_COLOR) -> np.ndarray | None:
    try:
        return _decoded(Image.open(path), flags)
    except OSError:
        return None


def imdecode(data: Any, flags: int = IMREAD_COLOR) -> np.ndarray:
    return _decoded(Image.open(io.BytesIO(np.asarray(data).tobytes())), flags)


def _decoded(opened: Image.Image, flags: int) -> np.ndarray:
    if flags == IMREAD_GRAYSCALE:
        return np.asarray(opened.convert("L")).copy()
    if flags == IMREAD_UNCHANGED and opened.mode not in ("RGB", "RGBA", "P"):
        return np.asarray(opened).copy()
    colours = np.asarray(opened if flags == IMREAD_UNCHANGED and opened.mode == "RGBA" else opened.convert("RGB"))
    return np.ascontiguousarray(colours[..., [2, 1, 0, *range(3, colours.shape[2])]])


def imwrite(path: Any, picture: np.ndarray, parameters: Any = None) -> bool:
    colours = picture if picture.ndim == 2 else picture[..., [2, 1, 0, *range(3, picture.shape[2])]]
    Image.fromarray(np.clip(colours, 0, 255).astype(np.uint8)).save(path)
    return True


def cvtColor(picture: np.ndarray, code: int, dst: np.ndarray | None = None) -> np.ndarray:
    converted = _recoloured(picture, code)
    if dst is not None:
        dst[...] = converted
    return converted


def _recoloured(picture: np.ndarray, code: int) -> np.ndarray:
    if code == COLOR_BGR2RGB:
        return np.ascontiguousarray(picture[..., [2, 1, 0, *range(3, picture.shape[2])]])
    if code in (COLOR_BGR2GRAY, COLOR_RGB2GRAY):
        weights = [0.114, 0.587, 0.299] if code == COLOR_BGR2GRAY else [0.299, 0.587, 0.114]
        return (picture[..., :3] @ np.asarray(weights)).astype(picture.dtype)
    if code == COLOR_GRAY2BGR:
        return np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)
    return _to_hue(picture, code) if code in (COLOR_BGR2HSV, COLOR_RGB2HSV) else _from_hue(picture, code)


def _to_hue(picture: np.ndarray, code: int) -> np.ndarray:
    scale = 255.0 if picture.dtype == np.uint8 else 1.0
    red, green, blue = np.moveaxis(picture[..., ::-1] if code == COLOR_BGR2HSV else picture, -1, 0) / scale
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    safe = np.where(spread == 0, 1, spread)
    hue = np.select([value == red, value == green], [(green - blue) / safe % 6, (blue - red) / safe + 2], 4.0)
    hue = np.where((value == blue) & (value != red) & (value != green), (red - green) / safe + 4, hue) * 60
    saturation = spread / np.where(value == 0, 1, value)
    if picture.dtype == np.uint8:
        return np.stack([hue / 2, saturation * 255, value * 255], axis=-1).astype(np.uint8)
    return np.stack([hue, saturation, value], axis=-1).astype(picture.dtype)


def _from_hue(picture: np.ndarray, code: int) -> np.ndarray:
    eight_bits = picture.dtype == np.uint8
    hue, saturation, value = np.moveaxis(picture.astype(np.float32), -1, 0)
    if eight_bits:
        hue, saturation, value = hue * 2, saturation / 255, value / 255
    steps = [(hue / 60 + number) % 6 for number in (5, 3, 1)]
    parts = [value - value * saturation * np.clip(np.minimum(step, 4 - step), 0, 1) for step in steps]
    colours = np.stack(parts[::-1] if code == COLOR_HSV2BGR else parts, axis=-1)
    return (colours * 255).astype(np.uint8) if eight_bits else colours.astype(picture.dtype)


def _planes(picture: np.ndarray, work: Any) -> np.ndarray:
    """Do it to each channel, as Pillow knows floats in one channel only."""
    planes = picture.reshape(*picture.shape[:2], -1).astype(np.float32)
    done = np.stack([np.asarray(work(Image.fromarray(planes[..., n]))) for n in range(planes.shape[2])], axis=-1)
    if picture.dtype == np.uint8:
        done = np.clip(np.rint(done), 0, 255)
    return done.astype(picture.dtype).reshape(*done.shape[:2], *picture.shape[2:])


def split(picture: np.ndarray) -> list[np.ndarray]:
    return [np.ascontiguousarray(plane) for plane in np.moveaxis(picture, -1, 0)]


def merge(planes: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(planes, axis=-1)


def LUT(picture: np.ndarray, table: np.ndarray) -> np.ndarray:
    return np.asarray(table)[picture]


def resize(
    picture: np.ndarray, dsize: Sequence[int] | None, fx: float = 0, fy: float = 0, interpolation: int = INTER_LINEAR
) -> np.ndarray:
    height, width = picture.shape[:2]
    size = (round(width * fx), round(height * fy)) if dsize is None else (int(dsize[0]), int(dsize[1]))
    return _planes(picture, lambda plane: plane.resize(size, _KINDS[interpolation]))


def warpAffine(
    picture: np.ndarray, matrix: np.ndarray, dsize: Sequence[int], flags: int = INTER_LINEAR, **border: Any
) -> np.ndarray:
    inverse = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))[:2].reshape(-1).tolist()
    size = (int(dsize[0]), int(dsize[1]))
    return _planes(picture, lambda plane: plane.transform(size, Image.Transform.AFFINE, inverse, _KINDS[flags & 7]))


def getAffineTransform(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    points = np.hstack([np.asarray(source, dtype=np.float64), np.ones((3, 1))])
    return np.linalg.solve(points, np.asarray(target, dtype=np.float64)).T


def getRotationMatrix2D(center: Sequence[float], angle: float, scale: float) -> np.ndarray:
    a, b = scale * np.cos(np.radians(angle)), scale * np.sin(np.radians(angle))
    x, y = center
    return np.array([[a, b, (1 - a) * x - b * y], [-b, a, b * x + (1 - a) * y]])


def flip(picture: np.ndarray, flipCode: int, dst: np.ndarray | None = None) -> np.ndarray:
    axes = {0: 0, 1: 1}.get(flipCode, (0, 1))
    flipped = np.ascontiguousarray(np.flip(picture, axes))
    if dst is not None:
        dst[...] = flipped
    return flipped


def copyMakeBorder(
    picture: np.ndarray, top: int, bottom: int, left: int, right: int, borderType: int, value: Any = 0
) -> np.ndarray:
    options = {"constant_values": np.ravel(value)[0]} if borderType == BORDER_CONSTANT else {}
    edges = [(top, bottom), (left, right), (0, 0)][: picture.ndim]
    return np.pad(picture, edges, mode=_PADDING[borderType], **options)
