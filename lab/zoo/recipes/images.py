"""Pictures and the data sets that are made of them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from lab.zoo.recipes.files import word


def picture(seed: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    """A smooth random picture, so that JPEG files stay small."""
    draw = np.random.default_rng(seed)
    coarse = draw.integers(0, 256, (8, 8, channels), dtype=np.uint8)
    rows = np.arange(height) * 8 // height
    columns = np.arange(width) * 8 // width
    full = coarse[rows][:, columns]
    return full if channels > 1 else full[:, :, 0]


def _save(path: Path, array: np.ndarray) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def pictures(
    folder: Path, *, count: int = 64, size: list[int] | int = 256, ending: str = "jpg", pattern: str = "{:05d}",
    channels: int = 3, seed: int = 0, mask_values: list[int] | None = None,
) -> None:  # fmt: skip
    """A flat folder of pictures; with `mask_values`, of masks in which each value has a region."""
    height, width = (size, size) if isinstance(size, int) else size
    for number in range(count):
        array = picture(seed + number, height, width, 1 if mask_values else channels)
        if mask_values:
            array = np.asarray(mask_values, dtype=np.uint8)[array.astype(int) * len(mask_values) // 256]
        _save(folder / f"{pattern.format(number)}.{ending}", array)


def image_folder(
    folder: Path, *, splits: list[str] | None = None, classes: int = 4, per_class: int = 32,
    size: list[int] | int = 256, ending: str = "jpg",
) -> None:  # fmt: skip
    """split/class/picture, as torchvision's ImageFolder reads them."""
    for part, split in enumerate(splits or ["."]):
        for label in range(classes):
            pictures(
                folder / split / f"class{label:03d}", count=per_class, size=size, ending=ending,
                seed=100_000 * part + 1000 * label,
            )  # fmt: skip


def mnist(folder: Path, *, train: int = 2000, test: int = 500, compressed: bool = False) -> None:
    """The four idx files of MNIST; `folder` is what torchvision calls MNIST/raw."""
    draw = np.random.default_rng(0)
    for prefix, count in (("train", train), ("t10k", test)):
        images = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        _write_idx(folder / f"{prefix}-images-idx3-ubyte", images, compressed)
        _write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels, compressed)


def _write_idx(path: Path, array: np.ndarray, compressed: bool) -> None:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    body = header + array.tobytes()
    path.write_bytes(body)
    if compressed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(body))


def cifar(folder: Path, *, classes: int = 10, train: int = 5000, test: int = 500) -> None:
    """The python version of CIFAR-10 or CIFAR-100, in the folder that torchvision looks for."""
    draw = np.random.default_rng(0)

    def batch(count: int) -> dict[str, Any]:
        data = draw.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = [number % classes for number in range(count)]
        names = [f"{number}.png" for number in range(count)]
        return {"data": data, "labels" if classes == 10 else "fine_labels": labels, "filenames": names}

    if classes == 10:
        base = folder / "cifar-10-batches-py"
        files = {f"data_batch_{number}": train // 5 for number in range(1, 6)} | {"test_batch": test}
        meta, names = "batches.meta", "label_names"
    else:
        base = folder / "cifar-100-python"
        files = {"train": train, "test": test}
        meta, names = "meta", "fine_label_names"
    base.mkdir(parents=True, exist_ok=True)
    for name, count in files.items():
        (base / name).write_bytes(pickle.dumps(batch(count)))
    (base / meta).write_bytes(pickle.dumps({names: [f"class{number}" for number in range(classes)]}))


def coco(
    folder: Path, *, images: dict[str, str], annotations: dict[str, str], count: int = 24,
    size: list[int] | int = 480, objects: int = 5, categories: int = 90,
) -> None:  # fmt: skip
    """Pictures with boxes and polygons: `images` and `annotations` say where each split's lie."""
    height, width = (size, size) if isinstance(size, int) else size
    for part, split in enumerate(images):
        draw = np.random.default_rng(part)
        document: dict[str, list[dict[str, Any]]] = {
            "images": [], "annotations": [],
            "categories": [{"id": number, "name": f"thing{number}"} for number in range(1, categories + 1)],
        }  # fmt: skip
        for number in range(count):
            name = f"{number + 1:012d}.jpg"
            _save(folder / images[split] / name, picture(1000 * part + number, height, width))
            document["images"].append({"id": number + 1, "file_name": name, "height": height, "width": width})
            for _ in range(objects):
                left, top = (int(draw.integers(0, extent // 2)) for extent in (width, height))
                wide, high = (int(draw.integers(20, extent // 2)) for extent in (width, height))
                right, bottom = left + wide, top + high
                document["annotations"].append({
                    "id": len(document["annotations"]) + 1, "image_id": number + 1, "iscrowd": 0,
                    "bbox": [left, top, wide, high], "area": wide * high,
                    "category_id": int(draw.integers(1, categories + 1)),
                    "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                })  # fmt: skip
        path = folder / annotations[split]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document), encoding="utf-8")


def yolo(folder: Path, *, splits: list[str], count: int = 48, size: list[int], categories: int = 80) -> None:
    """Pictures, a text of boxes beside each, and a list of the pictures of each split, as YOLO is trained on them."""
    height, width = size
    for split in splits:
        draw = np.random.default_rng(0)
        listed = [f"./images/{split}/{number:012d}.jpg" for number in range(count)]
        (folder / f"{split}.txt").write_text("".join(name + "\n" for name in listed))
        for number, name in enumerate(listed):
            _save(folder / name, picture(number, height, width))
            label = folder / f"labels/{split}/{number:012d}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            boxes = [[*draw.uniform(0.3, 0.7, 2), *draw.uniform(0.1, 0.4, 2)] for _ in range(draw.integers(1, 8))]
            lines = [" ".join([str(draw.integers(categories)), *(f"{v:.4f}" for v in box)]) for box in boxes]
            label.write_text("\n".join(lines) + "\n")


def blender_scene(folder: Path, *, count: int = 8, size: int = 400) -> None:
    """Pictures of a scene with their cameras, as NeRF's synthetic scenes are stored."""
    for part, split in enumerate(("train", "val", "test")):
        frames = []
        for number in range(count):
            angle = 2 * np.pi * number / count
            turned = [
                [np.cos(angle), 0, np.sin(angle), 4 * np.sin(angle)], [0, 1, 0, 0],
                [-np.sin(angle), 0, np.cos(angle), 4 * np.cos(angle)], [0, 0, 0, 1],
            ]  # fmt: skip
            frames.append({"file_path": f"./{split}/r_{number}", "transform_matrix": turned})
            _save(folder / split / f"r_{number}.png", picture(1000 * part + number, size, size, 4))
        document = {"camera_angle_x": 0.69, "frames": frames}
        (folder / f"transforms_{split}.json").write_text(json.dumps(document, default=float), encoding="utf-8")


def video_frames(folder: Path, *, videos: int = 160, frames: int = 30, size: int = 64, classes: int = 101) -> None:
    """Videos of UCF-101 as folders of frames, and the pickled names of its actions."""
    actions = [f"Action{label:03d}" for label in range(classes)]
    (folder / "UCF101actions.pkl").write_bytes(pickle.dumps(actions))
    for number in range(videos):
        name = f"v_{actions[number % classes]}_g{number:02d}_c01"
        pictures(folder / "jpegs_256" / name, count=frames, size=size, pattern="frame{:06d}", seed=50 * number)


def annotated_clips(
    folder: Path, *, videos: int = 48, frames: int = 24, size: list[int] | int = 128, classes: int = 4
) -> None:
    """Videos as label/video/image_00001.jpg with one JSON of annotations, as 3-D ResNets are trained on them."""
    labels = [f"action{label:02d}" for label in range(classes)]
    database = {}
    for number in range(videos):
        label, name = labels[number % classes], f"v_{number:03d}"
        pictures(folder / label / name, count=frames + 1, size=size, pattern="image_{:05d}", seed=50 * number)
        database[name] = {"subset": "training", "annotations": {"label": label, "segment": [1, frames + 1]}}
    (folder / "annotations.json").write_text(json.dumps({"labels": labels, "database": database}), encoding="utf-8")


def celeba(folder: Path, *, count: int = 64) -> None:
    """Aligned faces and the list of their attributes."""
    names = ["Black_Hair", "Blond_Hair", "Brown_Hair", "Male", "Young"]
    pictures(folder / "images", count=count, size=[218, 178], pattern="{:06d}")
    draw = np.random.default_rng(0)
    rows = [f"{number:06d}.jpg {' '.join(draw.choice(['-1', '1'], len(names)))}" for number in range(count)]
    lines = [str(count), " ".join(names), *rows]
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def captioned_pictures(folder: Path, *, count: int = 40, size: int = 256) -> None:
    """Pictures and a text for each, as the image folders of Hugging Face's datasets are laid out."""
    pictures(folder / "train", count=count, size=size)
    lines = [json.dumps({"file_name": f"{number:05d}.jpg", "text": f"picture {number}"}) for number in range(count)]
    (folder / "train" / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def flying_chairs(folder: Path, *, count: int = 40, size: list[int]) -> None:
    """Pairs of pictures with the flow between them, as FlyingChairs has them."""
    height, width = size
    for number in range(count):
        name = f"{number + 1:05d}"
        for part in (1, 2):
            _save(folder / f"{name}_img{part}.ppm", picture(2 * number + part, height, width))
        flow = np.random.default_rng(number).normal(0, 5, (height, width, 2)).astype("<f4")
        header = struct.pack("<fii", 202021.25, width, height)
        (folder / f"{name}_flow.flo").write_bytes(header + flow.tobytes())


def flying_things(folder: Path, *, size: list[int], scenes: int = 4, frames: int = 6) -> None:
    """Sequences of pictures with the flow to the next and to the last one, as FlyingThings3D has them."""
    height, width = size
    for scene in range(scenes):
        place = f"TRAIN/A/{scene:04d}"
        for number in range(frames):
            _save(
                folder / "frames_cleanpass" / place / f"left/{number:04d}.png", picture(scene + number, height, width)
            )
            flow = np.random.default_rng(number).normal(0, 5, (height, width, 3)).astype("<f4")
            for direction in ("into_future", "into_past"):
                path = folder / "optical_flow" / place / direction / f"left/{number:04d}.pfm"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(f"PF\n{width} {height}\n-1.0\n".encode() + flow.tobytes())


def pictures_in_lmdb(folder: Path, *, name: str, sizes: list[int], count: int = 256) -> None:
    """A database of JPEG files, each picture in several sizes, as progressively growing GANs are trained on them."""
    import lmdb
    from PIL import Image

    with lmdb.open(str(folder / name), map_size=1 << 30) as database, database.begin(write=True) as transaction:
        for number in range(count):
            for size in sizes:
                out = io.BytesIO()
                Image.fromarray(picture(number, size, size)).save(out, "JPEG")
                transaction.put(f"{size}-{number:05d}".encode(), out.getvalue())
        transaction.put(b"length", str(count).encode())


def listed_objects(
    folder: Path,
    *,
    splits: list[str],
    images: str,
    count: int = 24,
    size: list[int],
    objects: int = 4,
    labels: int = 20,
) -> None:
    """Pictures, and for each split a JSON of their paths and one of the objects in each."""
    height, width = size
    for part, split in enumerate(splits):
        draw = np.random.default_rng(part)
        paths, found = [], []
        for number in range(count):
            path = folder / images / f"{split}{number:05d}.jpg"
            _save(path, picture(1000 * part + number, height, width))
            paths.append(str(path))
            corners = draw.integers(0, [width // 2, height // 2], (objects, 2))
            extents = draw.integers(40, [width // 2, height // 2], (objects, 2))
            found.append({
                "boxes": np.concatenate([corners, corners + extents], axis=1).tolist(),
                "labels": draw.integers(1, labels + 1, objects).tolist(),
                "difficulties": [0] * objects,
            })  # fmt: skip
        (folder / f"{split}_images.json").write_text(json.dumps(paths), encoding="utf-8")
        (folder / f"{split}_objects.json").write_text(json.dumps(found), encoding="utf-8")


def words_in_pictures(folder: Path, *, splits: list[str], count: int = 256, size: list[int]) -> None:
    """Pictures of words with a lexicon, and for each split a list of picture and number of the word."""
    height, width = size
    lexicon = [word(number) for number in range(500)]
    (folder / "lexicon.txt").write_text("".join(f"{entry}\n" for entry in lexicon), encoding="utf-8")
    for part, split in enumerate(splits):
        pictures(folder / split, count=count, size=[height, width], seed=1000 * part)
        lines = [f"{split}/{number:05d}.jpg {number * 7 % len(lexicon)}\n" for number in range(count)]
        (folder / f"annotation_{split}.txt").write_text("".join(lines), encoding="utf-8")


def listed_pictures(
    folder: Path, *, name: str, line: str, lines: int, count: int = 64, size: list[int], classes: int = 20
) -> None:
    """Pictures and a list of them: in each `line`, {path} and {label} are filled in."""
    height, width = size
    paths = [folder / "listed" / f"{number:05d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        _save(path, picture(number, height, width))
    filled = [line.format(path=paths[number % count], label=number % classes) for number in range(lines)]
    (folder / name).write_text("".join(f"{text}\n" for text in filled), encoding="utf-8")


def clips(
    folder: Path, *, splits: list[str], classes: int = 4, per_class: int = 16, frames: int = 20, size: list[int]
) -> None:
    """Videos as split/class/video/frame."""
    for split in splits:
        for label in range(classes):
            for number in range(per_class):
                place = folder / split / f"action{label:02d}" / f"v_{number:03d}"
                pictures(place, count=frames, size=size, seed=50 * number)


def stereo_patches(folder: Path, *, size: list[int], scale: int, count: int = 64) -> None:
    """Pairs of pictures, small and large, each in a folder of its own."""
    height, width = size
    for number in range(count):
        place = folder / f"{number:06d}"
        for eye in (0, 1):
            _save(place / f"lr{eye}.png", picture(2 * number + eye, height, width))
            _save(place / f"hr{eye}.png", picture(2 * number + eye, scale * height, scale * width))


def pickled_pictures(folder: Path, *, names: list[str], classes: int, per_class: int = 20, size: int = 84) -> None:
    """Pickles of pictures with their labels, as few-shot learners read miniImageNet."""
    for part, name in enumerate(names):
        data = np.stack([picture(1000 * part + number, size, size) for number in range(classes * per_class)])
        labels = [number // per_class for number in range(classes * per_class)]
        (folder / name).write_bytes(pickle.dumps({"data": data, "labels": labels}))


def triplets(folder: Path, *, count: int, size: list[int]) -> None:
    """Three frames in a row, and the lists of them, as Vimeo-90K has them."""
    names = [f"00001/{number:04d}" for number in range(1, count + 1)]
    for number, name in enumerate(names):
        for frame in (1, 2, 3):
            _save(folder / "sequences" / name / f"im{frame}.png", picture(3 * number + frame, *size))
    for split in ("train", "test"):
        (folder / f"tri_{split}list.txt").write_text("".join(name + "\n" for name in names))


def arrays_in_zip(folder: Path, *, name: str, shape: list[int], classes: int, count: int = 256) -> None:
    """Arrays with their labels in an archive, as the latents of pictures are stored."""
    draw = np.random.default_rng(0)
    labels = []
    with zipfile.ZipFile(folder / name, "w") as archive:
        for number in range(count):
            entry = f"00000/img-mean-std-latents-{number:08d}.npy"
            content = io.BytesIO()
            np.save(content, draw.standard_normal(shape, dtype=np.float32))
            archive.writestr(entry, content.getvalue())
            labels.append([entry, number % classes])
        archive.writestr("dataset.json", json.dumps({"labels": labels}))


RECIPES = (
    annotated_clips,
    arrays_in_zip,
    blender_scene,
    captioned_pictures,
    celeba,
    cifar,
    clips,
    coco,
    flying_chairs,
    flying_things,
    image_folder,
    listed_objects,
    listed_pictures,
    mnist,
    pickled_pictures,
    pictures,
    pictures_in_lmdb,
    stereo_patches,
    triplets,
    video_frames,
    words_in_pictures,
    yolo,
)
