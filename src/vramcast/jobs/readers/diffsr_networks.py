"""What the model section of a DiffSR config says of a plain network of the same kind."""

from __future__ import annotations

from typing import Any

from vramcast.jobs.readers.keys import Keys

_WIDTHS = ("width", "hidden_dim", "init_features", "inner_channel", "n_hidden", "d_model", "hidden_size")
_LAYERS = ("num_layers", "n_layers", "num_encoder_layers", "depth")


def plain_arguments(kind: str, model: Keys, factor: int) -> tuple[int | None, int | None, dict[str, Any]]:
    """Width and layers, where it says them, and the other arguments of the network; `factor`: how much finer its
    output is."""
    width, layers = _first(model, _WIDTHS), _first(model, _LAYERS)
    channels = _first(model, ("in_dim", "in_channels", "in_channel")) or 1
    result = _first(model, ("out_dim", "out_channels", "out_channel")) or 1
    match kind:
        case "fno":
            widths, modes = model.take("layers"), model.take("modes1")
            more = {"in_channels": channels, "out_channels": result, "upsample": factor}
            if isinstance(modes, list) and modes:
                layers, more["modes"] = len(modes), max(modes)
            if isinstance(widths, list) and widths:
                width = max(widths)
            projection = model.whole("fc_dim")
            return width, layers, more | ({"projection": projection} if projection else {})
        case "unet":
            return width, layers, {"in_channels": channels, "out_channels": result, "upsample": factor}
        case "ddpm":  # the coarse field, interpolated, beside the noised one
            given = channels if channels > result else channels + result
            return width, layers, {"in_channels": given, "out_channels": result}
        case _:
            return width, layers, {}


def _first(model: Keys, names: tuple[str, ...]) -> int | None:
    return next((size for name in names if isinstance(model.take(name), int) and (size := model.whole(name))), None)
