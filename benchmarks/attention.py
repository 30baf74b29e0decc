"""Explicit beside fused attention in training, by number of tokens: the table in vit/attention.py.

    python benchmarks/attention.py [--rounds 31] [--tokens 65 128] [--devices cpu]
    python benchmarks/attention.py --width 64 --heads 4 --load 1088      # quickstart's shape

B batch, T tokens, D embed_dim, H heads.

A network of two encoder blocks, by default with D = 192 and H = 3 as ViT-Ti, goes forward and
backward over random tokens (B, T, D). B * T is about 8192, as in a batch of 128 images of 32x32
pixels in patches of 4. Both paths run in one process, one right after the other, in an order that
turns round every time, so that another load on the machine meets both; what counts is the median
over the rounds of the ratio within a round. bfloat16 is by autocast, as in training.

At the end come the lines of EXPLICIT_UP_TO: per device and dtype the largest T up to which the
explicit path gains at least 3 % at every T measured. For less the fused path is the choice: it
needs no (T, T) memory.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from vit.model import Architecture, Block

TOKENS = (2, 17, 65, 128, 197, 257, 577, 1370)
DTYPES = (torch.float32, torch.bfloat16)
DEPTH = 2
STEPS = {"cpu": 1, "cuda": 20, "mps": 5}  # per timing: a step must outlast the clock's grain
GAIN = 1.03


@dataclass
class Shape:
    """What is measured besides the number of tokens: D, H, and B * T."""

    width: int
    heads: int
    load: int

    def batch(self, tokens: int) -> int:
        """B for T tokens."""
        return max(1, round(self.load / tokens))

    def blocks(self, device: str) -> nn.Sequential:
        """The network: (B, T, D) -> (B, T, D)."""
        architecture = Architecture(embed_dim=self.width, num_heads=self.heads)
        return nn.Sequential(*(Block(architecture, 0.0) for _ in range(DEPTH))).to(device)


def use(network: nn.Sequential, path: str) -> None:
    """Sets how all blocks compute attention."""
    for block in network:
        block.attn.path = path


def seconds(network: nn.Sequential, x: Tensor, dtype: torch.dtype) -> float:
    """Time of one forward and backward pass."""
    device = x.device.type
    low = dtype == torch.bfloat16
    wait, steps = getattr(torch, device).synchronize, STEPS[device]
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        network.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype) if low else nullcontext():
            y = network(x)
        y.float().square().mean().backward()
    wait()
    return (time.perf_counter() - start) / steps


def compare(
    shape: Shape, device: str, dtype: torch.dtype, tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds of both paths, round by round; the first round warms up and is left out."""
    torch.manual_seed(0)
    network = shape.blocks(device)
    size = (shape.batch(tokens), tokens, shape.width)
    x = torch.randn(size, device=device, requires_grad=True)
    times: dict[str, list[float]] = {"explicit": [], "fused": []}
    for number in range(rounds + 1):
        for path in sorted(times, reverse=bool(number % 2)):
            use(network, path)
            times[path].append(seconds(network, x, dtype))
    return {path: values[1:] for path, values in times.items()}


def ratios(times: dict[str, list[float]]) -> list[float]:
    """Fused time over explicit time, sorted: above 1 the explicit path is faster."""
    pairs = zip(times["fused"], times["explicit"], strict=True)
    return sorted(fused / explicit for fused, explicit in pairs)


def measure(shape: Shape, device: str, dtype: torch.dtype, tokens: list[int], rounds: int) -> int:
    """Prints one row for each T; returns the largest T up to which explicit is the choice."""
    limit, ahead = 0, True
    for count in sorted(tokens):
        times = compare(shape, device, dtype, count, rounds)
        explicit, fused = (1000 * statistics.median(times[path]) for path in ("explicit", "fused"))
        low, middle, high = statistics.quantiles(ratios(times), n=4)
        ahead = ahead and middle >= GAIN
        limit = count if ahead else limit
        print(
            f"{device:<6} {name(dtype):<9} {count:>6} {shape.batch(count):>6} {explicit:>12.1f} "
            f"{fused:>9.1f} {middle:>8.2f}   {low:.2f} to {high:.2f}",
            flush=True,
        )
    return limit


def name(dtype: torch.dtype) -> str:
    """torch.float32 -> "float32"."""
    return str(dtype).removeprefix("torch.")


def available() -> list[str]:
    """The devices of this machine."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found.append("cuda")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=31, help="pairs of timings (default: 31)")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="numbers of tokens")
    parser.add_argument("--width", type=int, default=192, help="D (default: 192)")
    parser.add_argument("--heads", type=int, default=3, help="H (default: 3)")
    parser.add_argument("--load", type=int, default=8192, help="B * T (default: 8192)")
    parser.add_argument("--devices", nargs="+", default=available(), help="default: all there are")
    given = parser.parse_args()
    shape = Shape(given.width, given.heads, given.load)
    print(
        f"{DEPTH} blocks, D {shape.width}, H {shape.heads}, B * T about {shape.load}; "
        f"{given.rounds} rounds; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, "
        f"AVX512-bf16 {torch.cpu._is_avx512_bf16_supported()}, AMX "
        f"{torch.cpu._is_amx_tile_supported()}\n\n"
        "device dtype          T      B  explicit ms  fused ms    ratio   quartiles (fused / explicit)"
    )
    found = {
        (device, dtype): measure(shape, device, dtype, given.tokens, given.rounds)
        for device in given.devices
        for dtype in DTYPES
    }
    print("\nEXPLICIT_UP_TO = {")
    for (device, dtype), limit in found.items():
        print(f'    ("{device}", {dtype}): {limit},')
    print("}")


if __name__ == "__main__":
    main()
