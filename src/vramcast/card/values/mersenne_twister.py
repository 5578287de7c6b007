"""Torch's generator on the host, moved on by as many numbers as one likes without drawing them.

It is MT19937 (ATen/core/MT19937RNGEngine.h): a window of 624 words of a sequence in which each word follows from the
last 624 by shifts and exclusive or, so it is linear over bits. The window after N words is the sum of the windows after
those i words for which x^i is in x^N modulo the characteristic polynomial (Haramoto et al., Efficient Jump Ahead for
F2-Linear Random Number Generators, 2008).
"""

from __future__ import annotations

import functools
import struct

import torch

_WORDS, _MIDDLE, _DEGREE = 624, 397, 19937
_TWIST = 0x9908B0DF
_LEFT_AND_NEXT = struct.Struct("<iiQ")
"""In the state's bytes, behind the seed: how many words are left before the next twist, whether it was seeded, and
which word is the next."""
_PLACE, _STATE = 8, 24
_LARGE = 1 << 24
"""Words; to draw fewer takes less time than a jump."""
_CHUNK = 1 << 20


def skip(generator: torch.Generator, words: int) -> None:
    """Leave the generator as it is after drawing so many numbers of 32 bits."""
    if words >= _LARGE:
        generator.set_state(_moved(generator.get_state(), words))
        return
    scratch = torch.empty(min(words, _CHUNK), dtype=torch.uint8, device="cpu")
    while words:
        taken = min(words, _CHUNK)
        scratch[:taken].random_(generator=generator)
        words -= taken


def _moved(state: torch.Tensor, words: int) -> torch.Tensor:
    data = bytearray(state.tolist())
    left, seeded, _ = _LEFT_AND_NEXT.unpack_from(data, _PLACE)
    twists, into_last = divmod(words - (left - 1) - 1, _WORDS)
    into_last += 1
    window = list(struct.unpack_from(f"<{_WORDS}Q", data, _STATE))
    struct.pack_into(f"<{_WORDS}Q", data, _STATE, *_jump(window, _WORDS * (twists + 1)))
    _LEFT_AND_NEXT.pack_into(data, _PLACE, _WORDS + 1 - into_last, seeded, into_last)
    return torch.tensor(list(data), dtype=torch.uint8, device="cpu")


def _jump(window: list[int], words: int) -> tuple[int, ...]:
    sequence = window
    for _ in range(_DEGREE - 1):
        both = (sequence[-_WORDS] & 0x80000000) | (sequence[1 - _WORDS] & 0x7FFFFFFF)
        sequence.append(sequence[_MIDDLE - _WORDS] ^ (both >> 1) ^ (_TWIST if both & 1 else 0))
    data, size = struct.pack(f"<{len(sequence)}I", *sequence), 4 * _WORDS
    total = 0
    for place, bit in enumerate(reversed(bin(_power_of_x(words))[2:])):
        if bit == "1":
            total ^= int.from_bytes(data[4 * place : 4 * place + size], "little")
    return struct.unpack(f"<{_WORDS}I", total.to_bytes(size, "little"))


def _power_of_x(exponent: int) -> int:
    """x^exponent modulo the characteristic polynomial; bit i stands for x^i."""
    power = 1
    for digit in bin(exponent)[2:]:
        power = int(bin(power)[2:], 4)  # the square: a zero between each two bits
        power = _reduced(power << 1 if digit == "1" else power)
    return power


def _reduced(polynomial: int) -> int:
    multiples = _multiples()
    for shift in range(max(polynomial.bit_length() - _DEGREE, 0) // 8 * 8, -1, -8):
        polynomial ^= multiples[polynomial >> (_DEGREE + shift)] << shift
    return polynomial


@functools.cache
def _multiples() -> list[int]:
    """The multiple of the characteristic polynomial that has each number in its bits from x^19937 on."""
    polynomial = _characteristic_polynomial()
    multiples = [0]
    for bit in range(8):
        multiple = polynomial << bit
        multiple ^= multiples[(multiple >> _DEGREE) ^ (1 << bit)]
        multiples += [known ^ multiple for known in multiples]
    return multiples


def _characteristic_polynomial() -> int:
    """As Matsumoto and Nishimura give it (Mersenne Twister, 1998, appendix A)."""

    def times(polynomial: int, step: int) -> int:
        return polynomial << (_WORDS - step) ^ polynomial << (_MIDDLE - step)

    total, power = _TWIST >> 31, 1
    for bit in reversed(range(31)):
        total ^= times(power, 0) if _TWIST >> bit & 1 else 0
        power = times(power, 1)
    return total ^ times(power, 0)
