"""Seconds from Enter to the answer: the commands' --help and `import vit`, each a whole process.

    python benchmarks/startup.py [--repeats 11]

The processes alternate, so that another load on the machine meets each of them; what counts is the
median. `python -c pass` shows how much of it is Python's own start.
"""

import argparse
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 0.5  # seconds, median
COMMANDS = {
    "python -m vit --help": ["-m", "vit", "--help"],
    "python -m vit train --help": ["-m", "vit", "train", "--help"],
    "python -m vit evaluate --help": ["-m", "vit", "evaluate", "--help"],
    "python -m vit models dinov2": ["-m", "vit", "models", "dinov2"],
    'python -c "import vit"': ["-c", "import vit"],
}
BARE = {"python -c pass": ["-c", "pass"]}


def seconds(words: list[str]) -> float:
    """Wall time of one process from its start to its end.

    Raises:
        CalledProcessError: it failed.
    """
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--repeats", type=int, default=11, help="of each process (default: 11)")
    repeats = parser.parse_args().repeats
    everything = COMMANDS | BARE
    times: dict[str, list[float]] = {name: [] for name in everything}
    for number in range(repeats + 1):
        for name, words in everything.items():
            spent = seconds(words)
            if number:  # the first round fills the caches
                times[name].append(spent)
    print(f"Python {platform.python_version()}, {repeats} repeats, seconds of wall time")
    print(f"{'':<31} median   lowest to highest   limit")
    for name, values in times.items():
        median = statistics.median(values)
        limit = ""
        if name in COMMANDS:
            limit = f"{LIMIT}  {'kept' if median <= LIMIT else 'NOT KEPT'}"
        print(f"{name:<31} {median:6.3f}   {min(values):6.3f} to {max(values):6.3f}    {limit}")


if __name__ == "__main__":
    main()
