"""What goes into a step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vramcast.jobs.fields import LARGEST_SIZE, Dtype, Expression, Reference, Section, Size


class Input(Section):
    """One tensor of a batch."""

    shape: list[Expression]
    """Dimensions: numbers or expressions of the sizes, e.g. [batch, 3, height, width] or
    [batch, "frames // 4 + 1", 16, "height // 8", "width // 8"]. [] is a single number."""
    dtype: Dtype = "fp32"
    """Of the tensor."""
    below: Expression | None = None
    """Whole numbers from `at_least` up to, not including, this: the vocabulary, the number of classes."""
    at_least: Annotated[int, Field(ge=-LARGEST_SIZE, le=LARGEST_SIZE)] = 0
    """Smallest of the whole numbers."""
    fill: Literal["random", "ones", "zeros", "padded"] = "random"
    """ones: e.g. an attention mask without padding. padded: one with padding, zeros in the last eighth of each row."""
    leading: Expression | None = None
    """So many places at the beginning of each row hold leading_value, as an image's tokens do."""
    leading_value: Annotated[int, Field(ge=-LARGEST_SIZE, le=LARGEST_SIZE)] = 0
    """What they hold, e.g. 32000 for the images of LLaVA 1.5."""
    made_on: Literal["cpu", "gpu"] = "cpu"
    """cpu: it comes from the data loader and is moved to the card. gpu: it is made there in each step."""
    pinned: bool = False
    """From pinned memory, moved with non_blocking=True. Takes the computer's memory, not the card's."""
    channels_last: bool = False
    """In channels-last layout when it is made. To bring it into that layout on the card, beside the tensor that was
    moved there, refer to it as "images.channels_last()"."""


class Diffusion(Section):
    """Noise is added to one input on the card. Gives the references `noise`, `timesteps`, `noisy` and `objective`."""

    clean: Reference = "latents"
    """What noise is added to."""
    schedule: Literal["noise", "flow"] = "noise"
    """noise: DDPM, the model predicts the noise. flow: flow matching, the model predicts noise − clean."""
    steps: Size = 1000
    """Noise levels."""
