"""What a map costs over a plain forward pass, in time and in memory, beside other tools.

    python benchmarks/rollout.py --weights FILE [--photo FILE] [--sizes 518 896] [--rounds 5]

FILE holds ViT-S/14's weights under timm's names. One photo, or noise, float32, on the CPU.

Time: everything runs in one process, one after the other, in an order that turns round every time,
so that another load on the machine meets all of them; what counts is the median over the rounds of
the ratio to the plain forward pass of the same round. Memory: a process of its own for each, in
which the forward pass runs first; what counts is how far the peak of the process rises afterwards.
For maps of a class a training step (forward and backward) runs first.

The peers run on timm's network with its explicit attention, which they need, and each at its best:
without their discarding, which costs a quantile over the matrix and fails above 2^24 entries.

- vit-explain: its algorithm from its formula: every layer's attention caught by a hook, mean over
  heads, (A + I) / 2 with rows divided by their sums, the product of all as (T, T) matrices.
- fast-vit-rollout: the package itself, where it is installed (pip install fast-vit-rollout).
"""

import argparse
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import functional as transforms

sys.path.insert(0, str(Path(__file__).parents[1]))
import vit
from vit import pretrained
from vit.explain import explain

NAME, PATCH = "vit_small_patch14_dinov2", 14
LIMITS = {  # (map, tokens): times a forward pass, MB
    ("rollout", 1370): (1.4, 60),
    ("rollout", 4097): (1.6, 150),
    ("generic", 4097): (5.0, 400),
    ("gradcam", 4097): (5.0, 400),
}
CLASSES = ("generic", "legrad", "gradcam")


class Caught:
    """vit-explain's algorithm on a timm network: rollout from hooks and whole matrices."""

    def __init__(self, net):
        self.net, self.maps = net, []
        for block in net.blocks:
            block.attn.fused_attn = False
            block.attn.attn_drop.register_forward_hook(
                lambda module, given, weights: self.maps.append(weights)
            )

    def __call__(self, images: Tensor) -> Tensor:
        self.maps.clear()
        self.net(images)
        tokens = self.maps[0].shape[-1]
        product = torch.eye(tokens)
        for weights in self.maps:
            half = (weights.mean(dim=1) + torch.eye(tokens)) / 2
            product = half / half.sum(dim=-1, keepdim=True) @ product
        return product[:, 0, 1:]


def timm_net(weights: str, size: int):
    """timm's network with the weights, its positions resized by timm."""
    import timm

    return timm.create_model(
        NAME,
        img_size=size,
        num_classes=0,
        pretrained=True,
        pretrained_cfg_overlay={"file": weights},
    ).eval()


def fast_vit_rollout(weights: str, size: int) -> Callable[[Tensor], Tensor]:
    """The package on timm's network.

    Raises:
        ImportError: it is not installed.
    """
    import timm
    from fast_vit_rollout import ViTAttentionRollout

    timm.layers.set_fused_attn(False)
    net = timm_net(weights, size)
    timm.layers.set_fused_attn(True)
    return ViTAttentionRollout(net, discard_ratio=0.0)


def ours(weights: str, size: int) -> vit.VisionTransformer:
    """Our network, with a head so that there is a class to explain."""
    torch.manual_seed(0)
    return pretrained.network(NAME, weights, img_size=size, num_classes=10)[0]


def candidates(weights: str, size: int, names: list[str]) -> dict[str, Callable]:
    """What is measured: images (1, 3, size, size) -> anything. Peers that are not here are left out."""
    net, found = ours(weights, size), {}
    for name in names:
        if name == "forward":
            found[name] = torch.no_grad()(net)
        elif name == "rollout":
            found[name] = lambda images: vit.rollout(net, images)
        elif name in CLASSES:
            found[name] = lambda images, name=name: explain(net, images, name)
        elif name == "vit-explain":
            found[name] = torch.no_grad()(Caught(timm_net(weights, size)))
        elif name == "fast-vit-rollout":
            try:
                found[name] = torch.no_grad()(fast_vit_rollout(weights, size))
            except ImportError:
                print("fast-vit-rollout is not installed: left out")
        else:
            raise ValueError(f'"{name}" is no map measured here')
    return found


def pixels(photo: str | None, size: int) -> Tensor:
    """The photo, squashed and normalised as the network's photos are: (1, 3, size, size); or noise."""
    if photo is None:
        return torch.randn(1, 3, size, size)
    with Image.open(photo) as image:
        values = transforms.to_tensor(image.convert("RGB").resize((size, size)))
    return transforms.normalize(values, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))[None]


def seconds(call: Callable, images: Tensor) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call(images)
    return time.perf_counter() - start


def ratios(
    calls: dict[str, Callable], images: Tensor, rounds: int
) -> tuple[float, dict[str, float]]:
    """Seconds of a forward pass, and each call's time over it; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in sorted(calls, reverse=bool(number % 2)):
            times[name].append(seconds(calls[name], images))
    times = {name: values[1:] for name, values in times.items()}
    over = {
        name: statistics.median(a / b for a, b in zip(values, times["forward"], strict=True))
        for name, values in times.items()
    }
    return statistics.median(times["forward"]), over


def peak() -> float:
    """The most memory this process has held so far, MB.

    Linux's own counter: getrusage's begins with what the parent process held.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def memory_here(weights: str, images: Tensor, name: str) -> float:
    """MB by which one call raises the peak of this process above what it is compared with."""
    size = images.shape[-1]
    calls = candidates(weights, size, [name])
    if name not in calls:
        return float("nan")
    net = ours(weights, size)
    if name in CLASSES:
        net.train()(images).logsumexp(dim=1).sum().backward()
        net.zero_grad(set_to_none=True)
    else:
        with torch.no_grad():
            net(images)
    before = peak()
    calls[name](images)
    return peak() - before


def memory(given: argparse.Namespace, size: int, name: str) -> float:
    """`memory_here` in a process of its own, MB."""
    words = ["--weights", given.weights, "--memory", name, "--sizes", str(size)]
    words += ["--photo", given.photo] if given.photo else []
    done = subprocess.run(
        [sys.executable, __file__, *words], capture_output=True, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


def verdict(name: str, tokens: int, ratio: float, megabytes: float) -> str:
    """Beside the limits, where there are some."""
    if (name, tokens) not in LIMITS:
        return ""
    times, most = LIMITS[name, tokens]
    kept = ratio <= times and megabytes <= most
    return f"at most {times:.1f} and {most} MB: {'yes' if kept else 'NO'}"


def table(given: argparse.Namespace, size: int) -> None:
    """Prints one row for each map at one size."""
    calls = candidates(given.weights, size, ["forward", *given.maps])
    forward, over = ratios(calls, pixels(given.photo, size), given.rounds)
    tokens = (size // PATCH) ** 2 + 1
    print(f"\n{size} px, {tokens} tokens; a forward pass {forward:.2f} s\n")
    print(f"{'map':<18} {'over a forward':>14} {'extra MB':>9}")
    for name in given.maps:
        if name in calls:
            megabytes = memory(given, size, name)
            said = verdict(name, tokens, over[name], megabytes)
            print(f"{name:<18} {over[name]:>13.2f}x {megabytes:>9.0f}  {said}", flush=True)


def large(given: argparse.Namespace) -> None:
    """One rollout over many tokens."""
    images = pixels(given.photo, given.large)
    took = seconds(candidates(given.weights, given.large, ["rollout"])["rollout"], images)
    extra = memory(given, given.large, "rollout")
    print(
        f"\n{given.large} px, {(given.large // PATCH) ** 2 + 1} tokens: rollout in {took:.0f} s, "
        f"{extra:.0f} MB above a forward pass"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--weights", required=True, help="ViT-S/14 under timm's names")
    parser.add_argument("--photo", help="what the maps are of (default: noise)")
    parser.add_argument("--sizes", type=int, nargs="*", default=[518, 896], help="pixels")
    parser.add_argument("--rounds", type=int, default=5, help="timings of each (default: 5)")
    parser.add_argument("--large", type=int, default=1792, help="pixels; 0: none (default: 1792)")
    parser.add_argument(
        "--maps",
        nargs="+",
        default=["rollout", *CLASSES, "vit-explain", "fast-vit-rollout"],
        help="which (default: all)",
    )
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        print(memory_here(given.weights, pixels(given.photo, given.sizes[0]), given.memory))
        return
    print(
        f"float32, {given.rounds} rounds; torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}"
    )
    for size in given.sizes:
        table(given, size)
    if given.large:
        large(given)


if __name__ == "__main__":
    main()
