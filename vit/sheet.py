"""A sheet that grows downwards: paragraphs over its width, and pixels pasted as they are."""

import math
from dataclasses import dataclass, field

import numpy as np

from vit.typeset import INK, Line, wrapped, written

LINE_HEIGHT = 1.35  # of a line of text, in its letters' size


@dataclass
class Sheet:
    """A page as it grows downwards: blocks of pixels to paste and lines of text."""

    em: int
    left: int
    width: int
    y: float
    pasted: list[tuple[np.ndarray, int, int]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def write(self, text: str, size: float = 1.0, bold: bool = False, colour: str = INK) -> None:
        """A paragraph over the whole width; `size` in em."""
        letters = size * self.em
        for line in wrapped(text, self.width, letters, bold):
            self.y += LINE_HEIGHT * letters
            self.lines.append(Line(line, self.left, self.y - 0.3 * letters, letters, bold, colour))

    def paste(self, pixels: np.ndarray, x: float, y: float) -> tuple[int, int, int, int]:
        """Pixels with their top left corner at (x, y); returns their box."""
        x, y = round(x), round(y)
        self.pasted.append((pixels, x, y))
        return x, y, x + pixels.shape[1], y + pixels.shape[0]

    def skip(self, ems: float) -> None:
        """Leaves some height free."""
        self.y = math.ceil(self.y + ems * self.em)

    def finished(self) -> np.ndarray:
        """All of it on white."""
        height = math.ceil(self.y + 1.4 * self.em)
        page = np.full((height, self.width + 2 * self.left, 3), 255, np.uint8)
        page = written(page, self.lines)
        for pixels, x, y in self.pasted:
            page[y : y + pixels.shape[0], x : x + pixels.shape[1]] = pixels
        return page
