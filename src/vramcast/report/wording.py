"""Sentences and figures that more than one report uses."""

from __future__ import annotations

from vramcast.base.language import language, name, say, typeset
from vramcast.base.units import GIB, format_gib, format_size
from vramcast.memory import Moment, Prediction
from vramcast.trace import HostUse

# Letters whose names begin with a vowel: "an RTX 4090", "an H100", but "a B200", "a Tesla T4".
_VOWEL_LETTERS = "AEFHILMNORSX"
_VOWEL_NUMBERS = ("8", "11", "18")


_WORTH_AN_INTERVAL_BYTES = GIB // 10


def with_article(card: str) -> str:
    """As English needs it."""
    if language() != "en":
        return card
    first, second = card[:1], card[1:2]
    if first.isdigit():
        vowel = card.startswith(_VOWEL_NUMBERS)
    elif second.islower():
        vowel = first.lower() in "aeiou"
    else:
        vowel = first in _VOWEL_LETTERS
    return f"{'an' if vowel else 'a'} {card}"


def verdict(prediction: Prediction) -> str:
    """The one line that answers the question."""
    card = _card_name(prediction)
    needs = format_gib(prediction.device_bytes, 1)
    usable = format_gib(prediction.limit_bytes, 1)
    if prediction.fits:
        how, left = fits(prediction, card), spare(prediction)
        return say("{fits}: needs {needs} of {usable}, {left}", fits=how, needs=needs, usable=usable, left=left)
    grows = prediction.outlook
    if grows is not None and prediction.out_of_memory is None:
        growth = format_size(grows.growth.bytes_per_step)
        return say(
            "Does not fit {card} for long: needs {needs} of {usable}, grows by {growth} a step, {ending}",
            card=card, needs=needs, usable=usable, growth=growth, ending=grows.ending,
        )  # fmt: skip
    needs = say("at least {needs}", needs=needs) if prediction.at_least else needs
    if prediction.headroom_bytes >= 0:
        # It ran out although the peak is below the limit: no free range was large enough.
        text = "Does not fit {card}: needs {needs} in larger pieces than {usable} can give"
    else:
        text = "Does not fit {card}: needs {needs}, {usable} usable"
    return say(text, card=card, needs=needs, usable=usable)


def _card_name(prediction: Prediction) -> str:
    """Of several cards of one process, the one that the figures are of stands beside."""
    name = prediction.gpu.short_name
    return f"{len(prediction.cards)} x {name} (cuda:{prediction.card})" if prediction.cards else with_article(name)


def fits(prediction: Prediction, place: str) -> str:
    """A run that leaves less than the margin is not a plain yes."""
    return say("Fits {place}, but barely" if prediction.barely_fits else "Fits {place}", place=place)


def spare(prediction: Prediction) -> str:
    left_bytes = prediction.headroom_bytes
    if prediction.barely_fits:
        return say(
            "{left} to spare, less than the margin of {margin}", left=format_size(left_bytes), margin=margin(prediction)
        )
    return say("{left} to spare", left=format_gib(left_bytes, 1))


def margin(prediction: Prediction) -> str:
    """What is to be kept free beside it: a share, or bytes where chance decides what it takes."""
    if prediction.reserved_range[1] > prediction.peak_reserved_bytes:
        return format_size(prediction.with_margin_bytes - prediction.device_bytes)
    return prediction.margin.percent


def with_margin(prediction: Prediction) -> str:
    """What to keep free for it."""
    return f"with a margin of {margin(prediction)} {format_gib(prediction.with_margin_bytes)}"


def interval(prediction: Prediction) -> str:
    """How far 95 of 100 runs like it are off, to follow the figure; nothing where that is next to nothing."""
    low_bytes, high_bytes = prediction.interval
    if high_bytes - low_bytes < _WORTH_AN_INTERVAL_BYTES:
        return ""
    if prediction.reserved_range[0] < prediction.peak_reserved_bytes:
        return f" ({format_gib(low_bytes, 1)} to {format_gib(high_bytes, 1)})"
    off = (high_bytes - prediction.device_bytes) / GIB
    return f" ± {off:.1f}" if off >= 0.1 else f" ± {off:.2f}"


def place(moment: Moment) -> str:
    """Where in the run: "step 2, backward, aten.mm in transformer.h.3"."""
    where = [say("step {step}", step=moment.step + 1)]
    if moment.phase:
        where.append(name(moment.phase))
    if moment.op:
        inside = say("{op} in {module}", op=moment.op, module=moment.module)
        where.append(inside if moment.module else moment.op)
    return typeset(", ".join(where))


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def signed_percent(value: float, reference: float) -> str:
    return f"{100 * (value - reference) / reference:+.1f} %" if reference else "–"


def signed_size(size_bytes: int) -> str:
    return ("+" if size_bytes >= 0 else "−") + format_size(abs(size_bytes))


def seconds(value: float) -> str:
    """Of a step: 6.00 s, 12.3 ms, 0.1 ms."""
    if value >= 1:
        return f"{value:,.2f} s"
    milliseconds = value * 1e3
    return f"{milliseconds:.1f} ms" if milliseconds >= 0.1 or not value else f"{milliseconds:.2g} ms"


def rate(value: float) -> str:
    """Of samples a second."""
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def duration(value: float) -> str:
    """Of a run: 14.8 h, 12.3 min, 45 s, 250.0 ms."""
    if value < 1:
        return seconds(value)
    if value >= 48 * 3600:
        return f"{value / 86400:,.1f} days"
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    return f"{value / 60:.1f} min" if value >= 60 else f"{value:.0f} s"


def host_lines(host: HostUse | None) -> tuple[str, ...]:
    """What a run holds in the computer's memory; nothing where it holds nothing there."""
    if host is None:
        return ()
    lines = []
    if host.peak_bytes:
        parts = ", ".join(f"{name} {format_gib(size)}" for name, size in host.parts.items())
        pinned = f", {format_gib(host.pinned_bytes)} of it pinned" if host.pinned_bytes else ""
        lines.append(f"in the computer's memory {format_gib(host.peak_bytes)}{pinned}: {parts}")
    if host.paged_bytes:
        lines.append(
            f"paged optimizer state {format_gib(host.paged_bytes)}, in no figure above: on the card while there is "
            "room, else in the computer's memory"
        )
    return tuple(lines)
