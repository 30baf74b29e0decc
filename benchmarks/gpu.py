"""What a GPU has to show, in a few minutes and without any data but the embedded digits.

    python benchmarks/gpu.py            # on a machine with a GPU
    python benchmarks/gpu.py --tiny     # the same on a CPU, small: whether the script itself works

Learns quickstart; compares both attention paths and the CPU's logits; trains the cifar10
configuration's network with and without --compile, alternately; asks for far too large a batch, and
trains with the one that is then advised; kills a run and resumes it.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import vit
from vit.commands.train import train

ROOT = Path(__file__).parents[1]
BIG = {"model.img_size": 32, "model.patch_size": 4, "model.embed_dim": 192, "model.depth": 9}
BIG |= {"model.num_heads": 3, "data.batch_size": 128, "optim.epochs": 3, "optim.warmup_epochs": 1}


def learns(folder: Path, tiny: bool) -> str:
    """quickstart's accuracy on the device."""
    run = train("quickstart", epochs=2 if tiny else 120, **{"run.root": str(folder)})
    return f"test top-1 {run.summary['test']['top1']:.2%}, {run.summary['seconds']:.0f} s"


def agrees(device: str) -> str:
    """Largest relative difference between the logits of the device and of the CPU, by path."""
    torch.manual_seed(0)
    net = vit.VisionTransformer(img_size=224, patch_size=16, embed_dim=192, depth=12, num_heads=3)
    net.eval()
    images = torch.randn(4, 3, 224, 224)
    said = []
    with torch.inference_mode():
        expected = net(images)
        for path in ("explicit", "fused"):
            for dtype in (torch.float32, torch.bfloat16):
                moved = net.to(device)
                moved.use_attention(path)
                with torch.autocast(torch.device(device).type, dtype, dtype != torch.float32):
                    got = moved(images.to(device)).float().cpu()
                error = ((got - expected).norm() / expected.norm()).item()
                said.append(f"{path} {str(dtype)[6:]} {error:.1e}")
    return ", ".join(said)


def compiles(folder: Path, tiny: bool) -> str:
    """Images per second of the last epoch, eager and compiled, twice each, alternately."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    settings = BIG | ({"model.depth": 1, "optim.epochs": 2} if tiny else {"optim.epochs": 20})
    for compiled in (False, True) * (1 if tiny else 2):
        run = train("quickstart", **settings, **{"run.root": str(folder), "run.compile": compiled})
        rates[compiled].append(run.summary["images_per_second"])
    eager, compiled = (statistics.median(rates[one]) for one in (False, True))
    return f"{eager:,.0f} eager, {compiled:,.0f} compiled images/s: {compiled / eager:.2f}x"


def advises(folder: Path, tiny: bool) -> str:
    """A batch that cannot fit, and the one that the message names."""
    size = 16 if tiny else 512  # 1,360 images of 128 x 128 tokens: attention alone is past 1 TB
    words = ["--config", "quickstart", "--run.root", folder, "--data.batch_size", 1360]
    words += ["--model.img_size", size, "--model.patch_size", 4, "--model.attention", "explicit"]
    words += ["--optim.epochs", 1]
    words = [sys.executable, "train.py", *map(str, words)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stderr.strip().splitlines()[-1] if done.stderr else "fitted"
    found = re.search(r"batch_size (\d+) --optim.accumulate (\d+)", said)
    if not found:
        return f"{said} (code {done.returncode})"
    words += ["--data.batch_size", found[1], "--optim.accumulate", found[2]]
    return f"{said} (code {done.returncode}); trained with that: code {outcome(words)}"


def outcome(words: list[str]) -> int:
    """Exit code of a run that is stopped after two minutes, which is as good as 0."""
    try:
        return subprocess.run(
            words, cwd=ROOT, capture_output=True, timeout=120, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return 0


def resumes(folder: Path) -> str:
    """A run that is killed in its second epoch, and whether the resumed one ends alike."""
    words = [sys.executable, "train.py", "--run.root", str(folder), "--run.name", "killed"]
    words += ["--optim.epochs", "6", "--run.checkpoint_steps", "3"]
    run = folder / "killed" / "1"
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    while not (run / "metrics.csv").is_file() and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.wait()
    done = subprocess.run(
        [sys.executable, "train.py", "--resume", str(run)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    rows = (run / "metrics.csv").read_text().splitlines()
    return f"code {done.returncode}, {len(rows) - 1} epochs in metrics.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small, for a machine without a GPU")
    tiny = parser.parse_args().tiny
    if not (tiny or torch.cuda.is_available()):
        sys.exit("no GPU here; --tiny tries the script without one")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(torch.cuda.get_device_name() if device == "cuda" else "CPU", torch.__version__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, check in (
            ("learns", lambda: learns(folder, tiny)),
            ("agrees", lambda: agrees(device)),
            ("compiles", lambda: compiles(folder, tiny)),
            ("resumes", lambda: resumes(folder)),
            ("advises", lambda: advises(folder, tiny)),
        ):
            began = time.perf_counter()
            said = check()
            print(f"{title:>9}: {said}  [{time.perf_counter() - began:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
