"""Photos to classes: `vit predict` beside the bare network, timm's loop and transformers' pipeline.

    python benchmarks/predict.py --photos-in FOLDER --weights dinov2.safetensors
    python benchmarks/predict.py ... --precision bf16 --megapixels 12 --photos 400

The weights are timm's vit_small_patch14_dinov2 at 224 pixels, with one and the same random head for
all; that all compute the same is checked first. N links to the photos in FOLDER (repeated where it
has fewer) lie in one folder that everyone reads. With --megapixels the photos are first enlarged to
that size, 4:3, JPEG of quality 90. With --blocks 2 the network costs a sixth, as on a processor whose
matrix products are that much faster.

In one process the contenders take turns, slice by slice, in an order that turns round, so that
another load on the machine meets all. "bare" is the network alone on batches that lie in memory.

Each peer in the best of its documented settings on this machine: timm as its inference.py
(create_loader with workers, inference_mode; in bf16 both --amp and --model-dtype), transformers as
its guide on pipelines (a Dataset, batch_size, num_workers, the torchvision image processor, sdpa; in
bf16 the network cast: a pipeline's dtype does not touch a network in memory). With --precision bf16
on a processor that only emulates it both run in float32 as well. The best of all these counts.
"""

import argparse
import copy
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does, before torch
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import timm
import torch
from PIL import Image
from torch import Tensor

import vit
from vit import photos
from vit.inference import Computing, has_bf16, predict
from vit.model_file import TrainedModel
from vit.model_source import open_model

NAME, SIDE, CLASSES, CHECKED = "vit_small_patch14_dinov2", 224, 1000, 32
DTYPES = {"32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Task:
    """What everyone does: the files, the batch, the workers, the precision."""

    folder: Path
    batch_size: int
    workers: int
    precision: str

    @property
    def dtype(self) -> torch.dtype:
        """Of the matrix products."""
        return DTYPES[self.precision]


Contender = Callable[[Path], list[int]]  # a folder of photos -> the likeliest class of each


def with_head(model: TrainedModel, blocks: int) -> TrainedModel:
    """The network's first blocks with a seeded random head."""
    generator = torch.Generator().manual_seed(0)
    changed = {"num_classes": CLASSES, "img_size": SIDE, "depth": blocks}
    net = vit.VisionTransformer(**model.net.architecture.non_defaults() | changed)
    head = {
        "head.weight": torch.randn(CLASSES, net.architecture.embed_dim, generator=generator) / 10,
        "head.bias": torch.zeros(CLASSES),
    }
    state = model.net.state_dict() | head
    net.load_state_dict({name: state[name] for name in net.state_dict()})
    return TrainedModel(net.eval(), [str(i) for i in range(CLASSES)], model.preprocess)


def ours(model: TrainedModel, task: Task) -> Contender:
    """`vit predict`, without printing the rows."""
    computing = Computing(task.batch_size, task.workers, task.precision, device="cpu")

    def run(folder: Path) -> list[int]:
        rows = predict(model, photos.listed([folder]), 5, None, computing)
        return [int(row["label"]) for row in rows]

    return run


def bare(model: TrainedModel, task: Task) -> Contender:
    """The network on one batch in memory, as often as there are photos."""
    images = torch.randn(task.batch_size, 3, SIDE, SIDE, dtype=task.dtype)
    net = copy.deepcopy(model.net).to(task.dtype)

    @torch.inference_mode()
    def run(folder: Path) -> list[int]:
        count = len(list(folder.iterdir()))
        for first in range(0, count, task.batch_size):
            net(images[: count - first])
        return []

    return run


def in_timm(model: TrainedModel, task: Task, amp: bool = False) -> Contender:
    """timm's inference.py: create_dataset, create_loader, the loop.

    Args:
        amp: autocast (--amp) to the task's dtype, else weights and images in it (--model-dtype).
    """
    from timm.data import create_dataset, create_loader

    depth = model.net.architecture.depth
    net = timm.create_model(NAME, img_size=SIDE, num_classes=CLASSES, depth=depth).eval()
    net.load_state_dict(model.net.state_dict())
    dtype = torch.float32 if amp else task.dtype
    net.to(dtype)
    p = model.preprocess

    @torch.inference_mode()
    def run(folder: Path) -> list[int]:
        loader = create_loader(
            create_dataset("", str(folder)),
            (3, *p.size),
            task.batch_size,
            use_prefetcher=False,
            interpolation=p.interpolation,
            mean=p.mean,
            std=p.std,
            crop_pct=p.crop_pct,
            num_workers=task.workers,
            device=torch.device("cpu"),
            img_dtype=dtype,
        )
        said = []
        for images, _ in loader:
            with torch.autocast("cpu", task.dtype, enabled=amp):
                answer = net(images.to(dtype))
            said += answer.float().softmax(-1).topk(5).indices[:, 0].tolist()
        return said

    return run


class Paths(torch.utils.data.Dataset):
    """Paths as transformers' pipeline takes them."""

    def __init__(self, folder: Path):
        self.paths = sorted(map(str, folder.rglob("*.jpg")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> str:
        return self.paths[number]


def in_transformers(model: TrainedModel, task: Task) -> Contender:
    """The pipeline "image-classification" with the same weights in Dinov2ForImageClassification."""
    import transformers

    transformers.logging.set_verbosity_error()
    a, p = model.net.architecture, model.preprocess
    config = transformers.Dinov2Config(
        hidden_size=a.embed_dim,
        num_hidden_layers=a.depth,
        num_attention_heads=a.num_heads,
        image_size=SIDE,
        patch_size=a.patch_size[0],
        num_labels=CLASSES,
    )
    net = transformers.Dinov2ForImageClassification(config).eval()
    unused = {"dinov2.embeddings.mask_token": net.dinov2.embeddings.mask_token}
    net.load_state_dict(their_names(model.net.state_dict()) | unused)
    net.to(task.dtype)
    processor = transformers.BitImageProcessor(
        size={"shortest_edge": int(SIDE / p.crop_pct)},
        crop_size={"height": SIDE, "width": SIDE},
        resample=Image.Resampling[p.interpolation.upper()],
        image_mean=list(p.mean),
        image_std=list(p.std),
    )
    pipe = transformers.pipeline(
        "image-classification", net, image_processor=processor, device="cpu"
    )

    def run(folder: Path) -> list[int]:
        answers = pipe(Paths(folder), batch_size=task.batch_size, num_workers=task.workers, top_k=5)
        return [int(one[0]["label"].removeprefix("LABEL_")) for one in answers]

    return run


def peers_of(model: TrainedModel, task: Task, names: list[str]) -> dict[str, Contender]:
    """The peers of these names, in each of their settings that may be the best here."""
    emulated = task.precision == "bf16" and not has_bf16("cpu")
    tasks = [task, replace(task, precision="32")] if emulated else [task]
    peers = {}
    for one in tasks:
        if "timm" in names:
            peers[f"timm, {one.precision}"] = in_timm(model, one)
            if one.precision == "bf16":
                peers["timm, bf16 by amp"] = in_timm(model, one, amp=True)
        if "transformers" in names:
            peers[f"transformers, {one.precision}"] = in_transformers(model, one)
    return peers


def their_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's DINOv2 weights under the names of transformers' (5.24)."""
    named = {}
    for name, one in state.items():
        block = name.replace("blocks.", "dinov2.encoder.layer.")
        block = block.replace("ls1.gamma", "layer_scale1.lambda1")
        block = block.replace("ls2.gamma", "layer_scale2.lambda1")
        block = block.replace("attn.proj", "attention.o_proj")
        if "attn.qkv" in name:
            for part, third in zip("qkv", one.chunk(3), strict=True):
                named[block.replace("attn.qkv", f"attention.{part}_proj")] = third
        elif name.startswith("blocks."):
            named[block] = one
    embeddings = "dinov2.embeddings"
    head = state["head.weight"]
    return named | {
        f"{embeddings}.cls_token": state["cls_token"],
        f"{embeddings}.position_embeddings": state["pos_embed"],
        f"{embeddings}.patch_embeddings.projection.weight": state["patch_embed.proj.weight"],
        f"{embeddings}.patch_embeddings.projection.bias": state["patch_embed.proj.bias"],
        "dinov2.layernorm.weight": state["norm.weight"],
        "dinov2.layernorm.bias": state["norm.bias"],
        # its head reads the class token and the patches' mean; ours the class token alone
        "classifier.weight": torch.cat([head, torch.zeros_like(head)], dim=1),
        "classifier.bias": state["head.bias"],
    }


def lay_out(source: Path, folder: Path, count: int, slices: int, megapixels: float) -> list[Path]:
    """`slices` folders with `count` photos in all, links named in order; returns the folders."""
    found = [Path(path) for path in photos.listed([source]) if path.lower().endswith(".jpg")]
    if not found:
        raise SystemExit(f"no .jpg in {source}")
    found = found[:: max(1, len(found) // count)][:count]
    if megapixels:
        found = [enlarged(path, folder, megapixels) for path in found[:100]]
    parts = []
    for part in range(slices):
        inside = folder / f"slice{part}" / "photos"  # timm wants a folder per class
        inside.mkdir(parents=True)
        for number in range(part, count, slices):
            (inside / f"{number:06}.jpg").symlink_to(found[number % len(found)].resolve())
        parts.append(inside.parent)
    return parts


def enlarged(path: Path, folder: Path, megapixels: float) -> Path:
    """A real photo as a phone would store it: `megapixels` pixels in 4:3."""
    height = round((megapixels * 1e6 * 3 / 4) ** 0.5)
    target = folder / "large" / f"{path.parent.name}-{path.name}"
    target.parent.mkdir(exist_ok=True)
    with Image.open(path) as image:
        large = image.convert("RGB").resize((height * 4 // 3, height), Image.Resampling.BICUBIC)
        large.save(target, quality=90)
    return target


def agree(contenders: dict[str, Contender], folder: Path) -> None:
    """All say the same of the first slice, but for single photos: resizing is never the same."""
    said = {name: run(folder) for name, run in contenders.items() if name != "bare"}
    own = said.pop("ours")
    for name, others in said.items():
        share = sum(a == b for a, b in zip(own, others, strict=True)) / len(own)
        print(f"{name} says the same class as ours for {100 * share:.1f} % of {len(own)} photos")
        if share < 0.8:
            raise SystemExit(f"{name} does not compute the same")


def measure(contenders: dict[str, Contender], slices: list[Path]) -> dict[str, list[float]]:
    """Photos a second, per slice."""
    rates = {name: [] for name in contenders}
    for turn, folder in enumerate(slices):
        names = list(contenders)
        names = names[turn % len(names) :] + names[: turn % len(names)]
        count = len(list((folder / "photos").iterdir()))
        for name in names:
            start = time.perf_counter()
            contenders[name](folder / "photos" if name == "bare" else folder)
            rates[name].append(count / (time.perf_counter() - start))
            print(f"  slice {turn}: {name} {rates[name][-1]:.1f} photos/s", flush=True)
    return rates


def report(rates: dict[str, list[float]], peers: list[str]) -> None:
    """Medians, and medians of the ratios within a slice."""
    for name, values in rates.items():
        print(f"{name:24} {statistics.median(values):8.1f} photos/s")

    def ratio(one: str, other: str) -> float:
        pairs = zip(rates[one], rates[other], strict=True)
        return statistics.median(a / b for a, b in pairs)

    print(f"ours / bare network: {ratio('ours', 'bare'):.3f}")
    for name in peers:
        print(f"ours / {name}: {ratio('ours', name):.2f}")
    best = max(peers, key=lambda name: statistics.median(rates[name]))
    print(f"ours / better of the peers ({best}): {ratio('ours', best):.2f}")


def main() -> None:
    """Sets everything up and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--photos-in", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--weights", required=True, help=f"timm state dict of {NAME}")
    parser.add_argument("--photos", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--slices", type=int, default=4, help="turns (default: 4)")
    parser.add_argument("--precision", choices=tuple(DTYPES), default="32")
    parser.add_argument("--megapixels", type=float, default=0, help="enlarge the photos to this")
    parser.add_argument("--blocks", type=int, default=12, help="of the network's 12 (default: all)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=photos.default_workers())
    parser.add_argument("--peers", nargs="*", default=["timm", "transformers"])
    options = parser.parse_args()
    torch.manual_seed(0)
    model = with_head(open_model(options.weights, NAME, SIDE), options.blocks)
    folder = Path(tempfile.mkdtemp(prefix="predict-"))
    try:
        slices = lay_out(
            options.photos_in, folder, options.photos, options.slices, options.megapixels
        )
        task = Task(folder, options.batch_size, options.workers, options.precision)
        contenders = {"bare": bare(model, task), "ours": ours(model, task)}
        others = peers_of(model, task, options.peers)
        print(
            f"{options.photos} photos, {options}, torch {torch.__version__}, timm {timm.__version__}"
        )
        contenders |= others
        agree(contenders, some_of(slices[0], folder))
        report(measure(contenders, slices), list(others))
    finally:
        shutil.rmtree(folder)


def some_of(one: Path, folder: Path) -> Path:
    """A folder with the first photos of a slice, for the check; it warms everything up as well."""
    inside = folder / "checked" / "photos"
    inside.mkdir(parents=True)
    for path in islice(sorted((one / "photos").iterdir()), CHECKED):
        (inside / path.name).symlink_to(path.resolve())
    return inside.parent


if __name__ == "__main__":
    sys.exit(main())
