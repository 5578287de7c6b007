"""Activations by module in one step: what stays until the backward pass, and what is there only for a moment.

With checkpointing a block keeps its input, and makes the rest again while the backward pass is inside it: that part
lives only inside the block, so of all blocks only the largest counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vramcast.trace.schema import ALLOC, FREE, KINDS, StepTrace

_SAVED = KINDS.index("saved activations")
_TEMPORARY = KINDS.index("temporaries")


ROLES = ("base", "qkv", "attention", "ffn", "warp")
"""Features, projections to queries, keys and values, the rest of attention, feed-forward layers, and what optical flow
and the warping of features by it keep."""
_QKV = re.compile(r"qkv|query|key|value|(?:^|_)[qkv](?:_|$)|to_[qkv]|c_attn")
_ATTENTION = re.compile(r"attn|attention")
_SIZES = re.compile(r"\[(\d+), (\d+), \d+, \d+\]$")
"""The first two of four sizes: batch and heads."""
_SOFTMAX, _COPIES = "aten._softmax", ("aten.clone", "aten._to_copy", "aten.mul.Tensor")
_FFN = re.compile(r"mlp|ffn|feed_?forward|^ff$|^fc\d*$|intermediate|experts")
_WARP = re.compile(r"spynet|pwc_?net|raft|optical_?flow|flow_?net|warp|deform")
_WARPED, _GRID = "grid_sampler", re.compile(r"\[\d+, \d+, \d+, 2\]$")
"""What samples at given places, and the shape of those places."""


def role_of(module: str) -> str:
    """By the names that modules of transformers usually have, the innermost that says it first."""
    for part in reversed(module.lower().split(".")):
        for role, pattern in (("warp", _WARP), ("qkv", _QKV), ("attention", _ATTENTION), ("ffn", _FFN)):
            if pattern.search(part):
                return role
    return "base"


@dataclass(frozen=True, slots=True)
class RoleBytes:
    """As in `Stage`."""

    stays_bytes: int
    inside_bytes: int
    momentary_bytes: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A module with all below it; the root's name is empty and holds everything."""

    name: str
    stays_bytes: int
    """Made in the forward pass and kept until the backward pass reaches it."""
    inside_bytes: int
    """Made again inside the backward pass for one checkpointed block: the most that is alive at once."""
    momentary_bytes: int
    """Results that nothing keeps: the most that is alive at once."""
    children: tuple[Stage, ...]
    roles: Mapping[str, RoleBytes] = field(default_factory=dict)
    """The same by what a tensor is for; without those of which there are none."""

    @property
    def checkpointed(self) -> bool:
        """A part of it is made again in the backward pass."""
        return self.inside_bytes > 0

    def walk(self) -> Iterator[Stage]:
        yield self
        for child in self.children:
            yield from child.walk()


class _Levels:
    """What stays, and the most that is alive at once of the rest."""

    __slots__ = ("inside", "inside_now", "momentary", "momentary_now", "stays")

    def __init__(self) -> None:
        self.stays = 0
        self.inside = self.inside_now = 0
        self.momentary = self.momentary_now = 0


class _Draft(_Levels):
    __slots__ = ("children", "roles")

    def __init__(self) -> None:
        super().__init__()
        self.children: dict[str, _Draft] = {}
        self.roles: dict[str, _Levels] = {}


def stages(trace: StepTrace) -> Stage:
    """Activations by module over the last finished step (or the only one)."""
    step = max(0, trace.steps - 1)
    backward = list(trace.phases).index("backward") if "backward" in trace.phases else -1
    root = _Draft()
    heads, warping = _heads(trace), _warping(trace)
    paths: dict[tuple[int, str], list[_Levels]] = {}
    for code, block in zip(trace.event_kind, trace.event_arg, strict=True):
        if code not in (ALLOC, FREE) or trace.step[block] != step:
            continue
        kind = trace.kind[block]
        if kind not in (_SAVED, _TEMPORARY):
            continue
        module = trace.module[block]
        role = ""
        if module in heads and trace.ops[trace.op[block]] in _COPIES:
            role = "qkv" if heads[module].made_for(trace.shapes[trace.shape[block]]) else ""
        elif module in warping:
            is_grid = _GRID.search(trace.shapes[trace.shape[block]]) is not None
            role = "warp" if is_grid or _WARPED in trace.ops[trace.op[block]] else ""
        path = paths.get((module, role))
        if path is None:
            name = trace.modules[module]
            path = paths[module, role] = _with_roles(_path(root, name), role or role_of(name))
        size = trace.requested_bytes[block] if code == ALLOC else -trace.requested_bytes[block]
        if kind == _TEMPORARY:
            for node in path:
                node.momentary_now += size
                node.momentary = max(node.momentary, node.momentary_now)
        elif trace.phase[block] == backward:
            for node in path:
                node.inside_now += size
                node.inside = max(node.inside, node.inside_now)
        elif code == ALLOC:
            for node in path:
                node.stays += size
    return _finish("", root)


class _Heads:
    """Sizes of an attention module's weights: batch and heads, and all four."""

    __slots__ = ("leading", "weights")

    def __init__(self) -> None:
        self.leading: set[tuple[str, str]] = set()
        self.weights: set[str] = set()

    def made_for(self, shape: str) -> bool:
        """Whether it is of queries, keys or values: the batch and heads of the weights, and not weights themselves."""
        return _leading(shape) in self.leading and shape not in self.weights


def _heads(trace: StepTrace) -> dict[int, _Heads]:
    """Attention module → sizes of its weights. Copies with the same batch and heads are of queries, keys and values,
    which matrix products ask for where the projection returned all three in one."""
    found: dict[str, _Heads] = {}
    for block, op in enumerate(trace.op):
        shape = trace.shapes[trace.shape[block]]
        if trace.ops[op] == _SOFTMAX and (sizes := _leading(shape)) is not None:
            name = _attention_of(trace.modules[trace.module[block]])
            if name:
                heads = found.setdefault(name, _Heads())
                heads.leading.add(sizes)
                heads.weights.add(shape)
    return {number: found[name] for number, name in enumerate(trace.modules) if name in found}


def _attention_of(module: str) -> str:
    """The innermost module that is called attention; its softmax may be a module of its own."""
    parts = module.split(".")
    while parts and not _ATTENTION.search(parts[-1].lower()):
        parts.pop()
    return ".".join(parts)


def _warping(trace: StepTrace) -> set[int]:
    """Modules that sample features at other places."""
    return {trace.module[block] for block, op in enumerate(trace.op) if _WARPED in trace.ops[op]}


def _leading(shape: str) -> tuple[str, str] | None:
    sizes = _SIZES.search(shape)
    return (sizes[1], sizes[2]) if sizes else None


def _with_roles(path: list[_Draft], role: str) -> list[_Levels]:
    return [*path, *(node.roles.setdefault(role, _Levels()) for node in path)]


def _path(root: _Draft, name: str) -> list[_Draft]:
    path = [root]
    for part in name.split(".") if name else ():
        path.append(path[-1].children.setdefault(part, _Draft()))
    return path


def _finish(name: str, draft: _Draft) -> Stage:
    prefix = f"{name}." if name else ""
    children = tuple(_finish(prefix + part, child) for part, child in draft.children.items())
    roles = {
        role: RoleBytes(levels.stays, levels.inside, levels.momentary)
        for role in ROLES
        if (levels := draft.roles.get(role)) is not None
    }
    return Stage(name, draft.stays, draft.inside, draft.momentary, children, roles)
