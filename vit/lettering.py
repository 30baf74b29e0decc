"""Text that any font can show: names cut to a width, escapes for letters that no font has.

For matplotlib, which draws an empty box and warns where a letter is missing, and which takes what
stands between two dollars for a formula.
"""

import logging
from functools import cache
from unicodedata import east_asian_width

from matplotlib.font_manager import fontManager, get_font

log = logging.getLogger("vit")
# The first has Latin, Greek, Cyrillic, Arabic; of the others those that are installed are used.
FAMILIES = (
    "DejaVu Sans",
    "Noto Sans CJK TC",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Microsoft JhengHei",
    "Microsoft YaHei",
    "PingFang TC",
    "Hiragino Sans",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
    "Noto Sans",
)


def short(name, most: int) -> str:
    """A name on one line, its middle left out where it has more than `most` letters."""
    name = head = tail = with_glyphs(str(name))
    if letters(name) > most:
        while letters(head) > most // 2:
            head = head[:-1]
        while letters(tail) > most - most // 2 - 1:
            tail = tail[1:]
        name = f"{head}…{tail}"
    return literal(name)


def letters(text: str) -> int:
    """Its width in Latin letters: Chinese, Japanese and Korean ones take two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def with_glyphs(text: str) -> str:
    """The text, letters that no installed font has (and line ends) as their escapes, `\\u732b`.

    The empty box that would be drawn tells no two of them apart, and matplotlib warns of each.
    """
    known = fonts()[0]
    for letter in text:
        if ord(letter) not in known and letter.isprintable():
            warn_of_missing(letters(letter) == 2)
    return "".join(c if ord(c) in known else escaped(c) for c in text)


def escaped(letter: str) -> str:
    """A letter as Python writes it in ASCII."""
    return letter.encode("unicode_escape").decode()


@cache
def warn_of_missing(wide: bool) -> None:
    """Says once, and once more of Chinese, Japanese and Korean letters, that some cannot be drawn."""
    help_ = ": a font such as Noto Sans CJK helps" if wide else ""
    log.warning("letters that no installed font has are drawn as their codes, \\u732b%s", help_)


def literal(text: str) -> str:
    """The text so that matplotlib draws dollars and does not look for formulas between them."""
    return text.replace("$", r"\$")


@cache
def fonts() -> tuple[frozenset[int], list[str]]:
    """The letters that can be drawn, and the installed ones of FAMILIES."""
    files = {}
    for font in fontManager.ttflist:
        files.setdefault(font.name, font.fname)
    installed = [family for family in FAMILIES if family in files]
    known = (get_font(files[family]).get_charmap() for family in installed)
    return frozenset().union(*known), installed
