"""Sounds, arrays and graphs."""

from __future__ import annotations

import json
import random
import wave
from pathlib import Path

import numpy as np


def sounds(
    folder: Path, *, names: list[str] | None = None, count: int = 32, pattern: str = "{:04d}.wav", seconds: float = 4.0,
    rate: int = 22050,
) -> None:  # fmt: skip
    """Wave files of 16 bits: a few tones and noise."""
    paths = names or [pattern.format(number) for number in range(count)]
    for number, name in enumerate(paths):
        draw = np.random.default_rng(number)
        time = np.arange(int(seconds * rate)) / rate
        tones = sum(np.sin(2 * np.pi * draw.uniform(80, 2000) * time) for _ in range(3))
        signal = 0.2 * tones + 0.02 * draw.standard_normal(len(time))
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(rate)
            out.writeframes((np.clip(signal, -1, 1) * 32767).astype("<i2").tobytes())


def tokens(folder: Path, *, names: list[str], count: int = 200_000, vocabulary: int = 50257) -> None:
    """Token ids as a flat array of 16 bits."""
    for number, name in enumerate(names):
        draw = np.random.default_rng(number)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw.integers(0, vocabulary, count).astype(np.uint16).tofile(path)


def citation_graph(
    folder: Path, *, name: str = "cora", nodes: int = 2708, features: int = 1433, classes: int = 7, links: int = 5429
) -> None:
    """The files of the Planetoid data sets (Cora, CiteSeer, PubMed), with nodes of random features and links."""
    import pickle

    from scipy.sparse import csr_matrix

    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, nodes)
    values = (draw.random((nodes, features)) < 0.01).astype(np.float32)
    values[:, 0] = 1
    graph: dict[int, list[int]] = {number: [] for number in range(nodes)}
    for a, b in draw.integers(0, nodes, (links, 2)):
        graph[int(a)].append(int(b))
        graph[int(b)].append(int(a))
    one_hot = np.eye(classes, dtype=np.int32)[labels]
    train, test = 20 * classes, 1000
    known = nodes - test
    parts = {
        "x": csr_matrix(values[:train]), "tx": csr_matrix(values[known:]), "allx": csr_matrix(values[:known]),
        "y": one_hot[:train], "ty": one_hot[known:], "ally": one_hot[:known], "graph": graph,
    }  # fmt: skip
    for part, content in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(content))
    lines = "".join(f"{number}\n" for number in range(known, nodes))
    (folder / f"ind.{name}.test.index").write_text(lines, encoding="utf-8")


def modelnet(folder: Path, *, classes: int = 40, per_class: int = 4, points: int = 1200) -> None:
    """ModelNet40 as text files of points with normals."""
    draw = np.random.default_rng(0)
    labels = [f"shape{chr(97 + label // 26)}{chr(97 + label % 26)}" for label in range(classes)]
    names = [f"{label}_{number:04d}" for label in labels for number in range(1, per_class + 1)]
    for name in names:
        path = folder / name.split("_")[0] / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(path, draw.standard_normal((points, 6)), fmt="%.4f", delimiter=",")
    lists = {"shape_names": labels, "train": names, "test": names[:classes]}
    for part, content in lists.items():
        path = folder / f"modelnet{classes}_{part}.txt"
        path.write_text("".join(f"{name}\n" for name in content), encoding="utf-8")


def modelnet_hdf5(folder: Path, *, count: int = 256, points: int = 2048) -> None:
    """ModelNet40 as HDF5 files of points and labels."""
    import h5py

    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        with h5py.File(folder / f"ply_data_{split}0.h5", "w") as out:
            out["data"] = draw.normal(size=(count, points, 3)).astype("f4")
            out["label"] = draw.integers(0, 40, (count, 1)).astype("u1")


def shapenet_parts(folder: Path, *, per_split: int = 64, points: int = 2600) -> None:
    """Shapes of two kinds as texts of points and of the part that each belongs to, with lists of the splits."""
    draw = np.random.default_rng(0)
    kinds = {"Airplane": "02691156", "Chair": "03001627"}
    (folder / "train_test_split").mkdir(exist_ok=True)
    (folder / "synsetoffset2category.txt").write_text("".join(f"{name}\t{number}\n" for name, number in kinds.items()))
    for split in ("train", "test", "val"):
        listed = []
        for number in kinds.values():
            for part in ("points", "points_label"):
                (folder / number / part).mkdir(parents=True, exist_ok=True)
            for shape in (f"{split}{index:04d}" for index in range(per_split)):
                np.savetxt(folder / number / "points" / f"{shape}.pts", draw.normal(size=(points, 3)), fmt="%.4f")
                np.savetxt(folder / number / "points_label" / f"{shape}.seg", draw.integers(1, 4, points), fmt="%d")
                listed.append(f"shape_data/{number}/{shape}")
        (folder / "train_test_split" / f"shuffled_{split}_file_list.json").write_text(json.dumps(listed))


def labelled_series(folder: Path, *, name: str, train: int, test: int, length: int, classes: int = 2) -> None:
    """A data set of the UCR archive: a series a line, behind its class."""
    draw = np.random.default_rng(0)
    for split, count in (("TRAIN", train), ("TEST", test)):
        rows = [[index % classes + 1, *draw.normal(size=length).round(4)] for index in range(count)]
        (folder / f"{name}_{split}.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


def mixtures(folder: Path, *, splits: list[str], count: int = 24, seconds: float = 5.0, rate: int = 8000) -> None:
    """Two speakers and their mixture: wave files, and lists of path and length."""
    for split in splits:
        base = folder / split
        for part in ("mix", "s1", "s2"):
            sounds(base / part, count=count, seconds=seconds, rate=rate)
            paths = [[str(base / part / f"{number:04d}.wav"), int(seconds * rate)] for number in range(count)]
            (base / f"{part}.json").write_text(json.dumps(paths), encoding="utf-8")


def cora_text(folder: Path, *, nodes: int = 2708, features: int = 1433, classes: int = 7, links: int = 5429) -> None:
    """Cora as its authors published it: cora.content and cora.cites."""
    draw = np.random.default_rng(0)
    values = (draw.random((nodes, features)) < 0.01).astype(int)
    values[:, 0] = 1
    labels = draw.integers(0, classes, nodes)
    rows = [f"{node} {' '.join(map(str, values[node]))} label{labels[node]}\n" for node in range(nodes)]
    (folder / "cora.content").write_text("".join(rows), encoding="utf-8")
    pairs = draw.integers(0, nodes, (links, 2))
    (folder / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")


def interactions(folder: Path, *, names: list[str], users: int = 3000, items: int = 4000, per_user: int = 20) -> None:
    """Who took what: a line for each user, first the user, then the items; or pairs, where the name says `pairs`."""
    for number, name in enumerate(names):
        draw = np.random.default_rng(number)
        chosen = draw.integers(1, items + 1, (users, per_user))
        path = folder / name.removeprefix("pairs:")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("pairs:"):
            lines = [f"{user + 1} {item}\n" for user in range(users) for item in chosen[user]]
        else:
            lines = [f"{user} {' '.join(str(item - 1) for item in chosen[user])}\n" for user in range(users)]
        path.write_text("".join(lines), encoding="utf-8")


def voices(folder: Path, *, speakers: int = 16, utterances: int = 3, frames: int = 300) -> None:
    """Mel spectrograms and a list of speakers with their embeddings, as AutoVC reads them."""
    import pickle

    draw = np.random.default_rng(0)
    listed = []
    for speaker in range(speakers):
        entry: list[object] = [f"p{speaker}", draw.standard_normal(256).astype(np.float32)]
        for number in range(utterances):
            name = f"p{speaker}_{number}.npy"
            np.save(folder / name, draw.random((frames, 80)).astype(np.float32))
            entry.append(name)
        listed.append(entry)
    (folder / "train.pkl").write_bytes(pickle.dumps(listed))


def spectrograms(folder: Path, *, speakers: int = 12, utterances: int = 8, mels: int = 40, frames: int = 180) -> None:
    """One array of mel spectrograms for each speaker."""
    for speaker in range(speakers):
        values = np.random.default_rng(speaker).random((utterances, mels, frames))
        np.save(folder / f"speaker{speaker}.npy", values.astype(np.float32))


def knowledge_graph(folder: Path, *, entities: int = 14951, relations: int = 237, triples: int = 20_000) -> None:
    """Numbered entities and relations, and triples of them for each split."""
    for kind, count in (("entities", entities), ("relations", relations)):
        lines = [f"{number}\t{kind}{number}\n" for number in range(count)]
        (folder / f"{kind}.dict").write_text("".join(lines), encoding="utf-8")
    for number, split in enumerate(("train", "valid", "test")):
        draw = np.random.default_rng(number)
        count = triples if split == "train" else triples // 20
        heads, tails = draw.integers(0, entities, (2, count))
        kinds = draw.integers(0, relations, count)
        lines = [
            f"entities{head}\trelations{kind}\tentities{tail}\n"
            for head, kind, tail in zip(heads, kinds, tails, strict=True)
        ]
        (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8")


def array(folder: Path, *, name: str, shape: list[int], levels: int = 256) -> None:
    """An array of random small integers."""
    np.save(folder / name, np.random.default_rng(0).integers(0, levels, shape, dtype=np.uint8))


def human36m(folder: Path, *, keypoints: str, frames: int = 400, actions: int = 2) -> None:
    """Motion of people in three dimensions, and what the four cameras of Human3.6M detected of it."""
    draw = np.random.default_rng(0)
    subjects = ("S1", "S5", "S6", "S7", "S8", "S9", "S11")
    names = [f"Action {number}" for number in range(actions)]
    body = {s: {a: draw.standard_normal((frames, 32, 3), dtype=np.float32) for a in names} for s in subjects}
    seen = {
        s: {a: [draw.uniform(0, 1000, (frames, 17, 2)).astype(np.float32) for _ in range(4)] for a in names}
        for s in subjects
    }
    symmetry = [[4, 5, 6, 11, 12, 13], [1, 2, 3, 14, 15, 16]]
    metadata = {"layout_name": "h36m", "num_joints": 17, "keypoints_symmetry": symmetry}
    np.savez(folder / "data_3d_h36m.npz", positions_3d=body)
    np.savez(folder / f"data_2d_h36m_{keypoints}.npz", positions_2d=seen, metadata=metadata)


def graph_collection(folder: Path, *, name: str, graphs: int = 188, classes: int = 2, tags: int = 7) -> None:
    """Small labelled graphs in one text: how many; of each its size and class; of each node its tag and neighbours."""
    draw = random.Random(0)
    lines = [str(graphs)]
    for graph in range(graphs):
        size = draw.randint(10, 28)
        neighbours = [{(node + 1) % size, (node - 1) % size} for node in range(size)]
        lines.append(f"{size} {graph % classes}")
        lines += [" ".join(map(str, (draw.randrange(tags), len(others), *sorted(others)))) for others in neighbours]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")


def puzzles(folder: Path, *, count: int = 2000, length: int = 81, vocabulary: int = 11) -> None:
    """Puzzles and their answers as arrays, each a group of its own, for training and for testing."""
    for split in ("train", "test"):
        draw = np.random.default_rng(len(split))
        (folder / split).mkdir(parents=True, exist_ok=True)
        arrays = {
            "inputs": draw.integers(1, vocabulary, (count, length)),
            "labels": draw.integers(1, vocabulary, (count, length)),
            "puzzle_identifiers": np.zeros(count), "puzzle_indices": np.arange(count + 1),
            "group_indices": np.arange(count + 1),
        }  # fmt: skip
        for name, values in arrays.items():
            np.save(folder / split / f"all__{name}.npy", values.astype(np.int32))
        about = {
            "seq_len": length, "vocab_size": vocabulary, "pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0,
            "num_puzzle_identifiers": 1, "total_groups": count, "mean_puzzle_examples": 1, "total_puzzles": count,
            "sets": ["all"],
        }  # fmt: skip
        (folder / split / "dataset.json").write_text(json.dumps(about))


RECIPES = (
    array, citation_graph, cora_text, graph_collection, human36m, interactions, knowledge_graph,
    labelled_series, mixtures, modelnet, modelnet_hdf5, puzzles, shapenet_parts, sounds, spectrograms, tokens,
    voices,
)  # fmt: skip
