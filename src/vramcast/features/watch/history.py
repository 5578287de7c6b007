"""What was seen so far: for each card its peak, and a line that never grows without bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from vramcast.features.watch.sample import CardSample, Sample

_MOST_POINTS = 4096


@dataclass(slots=True)
class CardHistory:
    """The history of one card. `values` are the watched bytes; each is the maximum over `per_value` samples."""

    last: CardSample
    values: list[int] = field(default_factory=list)
    per_value: int = 1
    peak_bytes: int = 0
    peak_seconds: float = 0.0
    peak_used_bytes: int = 0
    peak_used_seconds: float = 0.0
    lost: bool = False
    """It answered before and does not now."""
    _open: int = 0

    def add(self, sample: CardSample, seconds: float) -> None:
        self.last = sample
        self.lost = False
        if sample.watched_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_seconds = sample.watched_bytes, seconds
        if sample.used_bytes > self.peak_used_bytes:
            self.peak_used_bytes, self.peak_used_seconds = sample.used_bytes, seconds
        if self._open:
            self.values[-1] = max(self.values[-1], sample.watched_bytes)
        else:
            self.values.append(sample.watched_bytes)
        self._open = (self._open + 1) % self.per_value
        if len(self.values) == _MOST_POINTS and not self._open:
            pairs = zip(self.values[::2], self.values[1::2], strict=True)
            self.values = [max(pair) for pair in pairs]
            self.per_value *= 2


@dataclass(slots=True, kw_only=True)
class History:
    predicted_bytes: int | None = None
    threshold: float = 0.9
    """Share of a card's memory above which there is a warning, once a card."""
    subject: str = ""
    """What is watched, in words; nothing: the whole card."""
    cards: dict[int, CardHistory] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    n_samples: int = 0
    seconds: float = 0.0
    _warned: set[int] = field(default_factory=set)

    def add(self, sample: Sample) -> list[str]:
        """Take it in; what is to be warned of now."""
        self.n_samples += 1
        self.seconds = sample.seconds
        self.problems = sample.problems
        for card in self.cards.values():
            card.lost = True
        warnings = []
        for reading in sample.cards:
            self.cards.setdefault(reading.index, CardHistory(reading)).add(reading, sample.seconds)
            if reading.used_share > self.threshold and reading.index not in self._warned:
                self._warned.add(reading.index)
                warnings.append(
                    f"card {reading.index} is above {self.threshold:.0%}: {reading.used_bytes / 2**30:.2f} of "
                    f"{reading.total_bytes / 2**30:.2f} GiB used"
                )
        return warnings
