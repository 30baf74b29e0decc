"""A line on stderr that says how far a command is, on a terminal only."""

import sys
import time

EVERY = 0.2  # seconds between two updates


def rate_text(speed: float) -> str:
    """So many a second in words, with three digits: large networks on a CPU do less than one."""
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"


class Progress:
    """Counts photos; `with Progress() as progress: progress.advance(3)`.

    Args:
        total: how many there will be; None: not known.
        what: the things counted.
    """

    def __init__(self, total: int | None = None, what: str = "photos"):
        self.total, self.what = total, what
        self.shown = sys.stderr.isatty()
        self.done, self.start, self.next = 0, time.monotonic(), 0.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self.shown and self.done:
            self.write()
            sys.stderr.write("\n")

    def advance(self, number: int = 1) -> None:
        """Counts `number` more."""
        self.done += number
        if self.shown and time.monotonic() >= self.next:
            self.next = time.monotonic() + EVERY
            self.write()

    def text(self) -> str:
        """How many, and how many a second."""
        of = f" of {self.total:,}" if self.total is not None else ""
        rate = self.done / max(time.monotonic() - self.start, 1e-9)
        return f"{self.done:,}{of} {self.what}, {rate_text(rate)}/s"

    def write(self) -> None:
        """Draws the line over the last one."""
        sys.stderr.write(f"\r\x1b[K{self.text()}")
        sys.stderr.flush()
