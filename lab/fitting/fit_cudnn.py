"""Fit the forests of card/libraries/cudnn_fit.bin to answers of cuDNN's heuristics (needs scikit-learn).

    python -m lab.fitting.fit_cudnn --out FILE sm_90=answers.pickle …

Each input is a pickled list of (ConvolutionProblem, sm_count, workspace bytes); `prepare_heuristics.py` makes one
from the sweep's files. With --held-out, half of each input is kept back and the error on it is printed.
"""

from __future__ import annotations

import argparse
import json
import pickle
import struct
import sys
import types
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from lab import ROOT

SOURCE = ROOT / "src" / "vramcast"
for name in ("vramcast", "vramcast.card", "vramcast.card.libraries"):  # without importing torch
    module = types.ModuleType(name)
    module.__path__ = [str(SOURCE.joinpath(*name.split(".")[1:]))]
    sys.modules.setdefault(name, module)

from vramcast.card.libraries.cudnn_fit import (  # noqa: E402
    PARTIALS_FLOOR_BYTES,
    Recipe,
    copies_bytes,
    features,
    group_name,
)
from vramcast.card.libraries.problem import ConvolutionProblem  # noqa: E402

Answer = tuple[ConvolutionProblem, int, int]
RECIPES = [Recipe(x, w, y, 0) for x in (0, 1, 2, 3) for w in (0, 1, 2, 3) for y in (0, 1, 2)]


def label(problem: ConvolutionProblem, workspace: int) -> tuple[Recipe, int]:
    """The simplest recipe that explains a workspace, and the bytes it leaves over."""
    recipes = RECIPES
    if problem.operation == "backward_weight":
        recipes = [*RECIPES, Recipe(0, 0, 0, 2 if problem.w[1] == 1 and problem.groups > 1 else 1)]
    sizes: dict[int, Recipe] = {}
    for recipe in recipes:
        size = copies_bytes(problem, recipe)
        known = sizes.get(size)
        # Where padding changes nothing, "padded" stands for both.
        if known is None or (_count(recipe), -_pads(recipe)) < (_count(known), -_pads(known)):
            sizes[size] = recipe
    tolerance = max(1024, 0.001 * problem.tensor_bytes)
    exact = [(_count(recipe), size) for size, recipe in sizes.items() if abs(workspace - size) <= tolerance]
    if exact:
        size = min(exact)[1]
    else:
        size = max(
            s
            for s, r in sizes.items()
            if s <= workspace and not r.per_image_weight and r.x != 1 and r.x != 3 and r.w in (0, 2) and r.y != 1
        )
    return sizes[size], max(0, workspace - size)


def _count(recipe: Recipe) -> int:
    return (recipe.x > 0) + (recipe.w > 0) + (recipe.y > 0) + (recipe.per_image_weight > 0)


def _pads(recipe: Recipe) -> int:
    return (recipe.x == 2) + (recipe.w == 2) + (recipe.y == 2)


def preorder(tree: Any, values: np.ndarray) -> tuple[list[int], list[float], list[int]]:
    """A scikit-learn tree as arrays whose left child is always the next node; branches that agree are merged."""
    agree = _agreements(tree, values)
    feature: list[int] = []
    threshold: list[float] = []
    right: list[int] = []
    stack = [(0, -1)]
    while stack:
        node, parent = stack.pop()
        if parent >= 0:
            right[parent] = len(feature)
        while True:
            answer = agree[node]
            leaf = answer is not None
            feature.append(255 if leaf else int(tree.feature[node]))
            threshold.append(float(tree.threshold[node] if answer is None else answer))
            right.append(0)
            if leaf:
                break
            stack.append((tree.children_right[node], len(feature) - 1))
            node = tree.children_left[node]
    return feature, threshold, right


def _agreements(tree: Any, values: np.ndarray) -> list[float | None]:
    """For each node the one value of all leaves below it, or None."""
    common: list[float | None] = [None] * tree.node_count
    for node in range(tree.node_count - 1, -1, -1):  # scikit-learn numbers children after their parent
        left, right = tree.children_left[node], tree.children_right[node]
        if left < 0:
            common[node] = float(values[node])
        elif common[left] is not None and common[left] == common[right]:
            common[node] = common[left]
    return common


def pack(trees: list[tuple[list[int], list[float], list[int]]]) -> tuple[dict[str, Any], bytes]:
    """Columns of bytes compress better than whole numbers: features, thresholds by byte, right children by byte."""
    feature: list[int] = []
    threshold: list[float] = []
    right: list[int] = []
    roots = []
    for f, t, r in trees:
        base = len(feature)
        roots.append(base)
        feature += f
        threshold += t
        right += [value - place if value else 0 for place, value in enumerate(r)]
    nodes = len(feature)
    coarse = (np.array(threshold, np.float32).view(np.uint32) + 0x80 & 0xFFFFFF00).view(np.uint8).reshape(nodes, 4)
    steps = np.array(right, np.uint32).view(np.uint8).reshape(nodes, 4)
    raw = np.array(feature, np.uint8).tobytes() + coarse.T.tobytes() + steps.T.tobytes()
    return {"nodes": nodes, "roots": roots}, zlib.compress(raw, 9)


def fit(
    answers: list[Answer], trees: int, partial_trees: int, leaf: int, partial_leaf: int
) -> tuple[list[Recipe], list[Any], list[Any]]:
    table = np.array([features(problem, sms) for problem, sms, _ in answers], dtype=np.float32)
    labels = [label(problem, workspace) for problem, _, workspace in answers]
    counts = Counter(recipe for recipe, _ in labels)
    common = {recipe for recipe, count in counts.items() if count >= max(4, len(labels) // 3000)}
    recipes = sorted(common, key=lambda r: -counts[r])
    number = {recipe: i for i, recipe in enumerate(recipes)}
    chosen = np.array([number.get(recipe, -1) for recipe, _ in labels])
    left_over = np.log2(np.array([extra for _, extra in labels], dtype=float) + PARTIALS_FLOOR_BYTES)
    # A small convolution's workspace hardly matters to a run's peak.
    weights = np.clip(np.array([problem.tensor_bytes for problem, _, _ in answers]) / 16e6, 0.1, 1)
    use = chosen >= 0
    chooser = RandomForestClassifier(trees, max_features=0.5, min_samples_leaf=leaf, n_jobs=2, random_state=1)
    chooser.fit(table[use], chosen[use], sample_weight=weights[use])
    partials = RandomForestRegressor(
        partial_trees, max_features=0.4, min_samples_leaf=partial_leaf, n_jobs=2, random_state=1
    )
    partials.fit(table[use], left_over[use], sample_weight=weights[use])
    classes = chooser.classes_
    choosing = [preorder(t.tree_, classes[t.tree_.value[:, 0, :].argmax(1)]) for t in chooser.estimators_]
    summing = [preorder(t.tree_, t.tree_.value[:, 0, 0]) for t in partials.estimators_]
    return recipes, choosing, summing


def main() -> None:
    parser = argparse.ArgumentParser(description="fit cudnn_fit.bin")
    parser.add_argument("inputs", nargs="+", help="sm_90=FILE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trees", type=int, default=7)
    parser.add_argument("--partial-trees", type=int, default=3)
    parser.add_argument("--leaf", type=int, default=2)
    parser.add_argument("--partial-leaf", type=int, default=8)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--note", default="{}")
    arguments = parser.parse_args()
    models: dict[str, Any] = {}
    body = b""
    for item in arguments.inputs:
        architecture, _, path = item.partition("=")
        groups: dict[str, list[Answer]] = defaultdict(list)
        for index, answer in enumerate(pickle.loads(Path(path).read_bytes())):
            if not (arguments.held_out and index // 3 % 2):
                groups[group_name(answer[0])].append(answer)
        models[architecture] = {}
        for group, answers in sorted(groups.items()):
            recipes, choosing, summing = fit(
                answers, arguments.trees, arguments.partial_trees, arguments.leaf, arguments.partial_leaf
            )
            entry: dict[str, Any] = {
                "recipes": [[r.x, r.w, r.y, r.per_image_weight] for r in recipes],
                "answers": len(answers),
            }
            for name, trees in (("chooser", choosing), ("partials", summing)):
                description, packed = pack(trees)
                entry[name] = {**description, "offset": len(body), "length": len(packed)}
                body += packed
            models[architecture][group] = entry
            print(
                architecture,
                group,
                len(answers),
                entry["chooser"]["nodes"],
                entry["partials"]["nodes"],
                len(body),
                flush=True,
            )
    header = json.dumps({"fitted_on": json.loads(arguments.note), "models": models}, separators=(",", ":")).encode()
    arguments.out.write_bytes(struct.pack("<I", len(header)) + header + body)


if __name__ == "__main__":
    main()
