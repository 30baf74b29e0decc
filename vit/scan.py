"""Which photos of a folder can be read: each is decoded once, and the answer remembered.

The memory lies in the user's cache folder, a file for every scanned folder, a line for every photo:
id, size, time of change, SHA-256, and what is wrong with it. Lines are only added, so that a scan
that was stopped goes on where it was, and a damaged line costs one photo's decoding.
"""

import hashlib
import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

import pi_heif
import PIL

from vit.commands.progress import Progress
from vit.cores import default_workers
from vit.folder import Folder
from vit.images import UnreadableImage, read
from vit.items import NAMED, Item
from vit.user_cache import user_cache

log = logging.getLogger("vit")
RULES = 1  # to be raised when this package reads files that it could not, or no longer can
CHUNK = 64  # photos that a thread takes at once
MANY = 1000  # so many photos to decode are announced
SETTLED = 2_000_000_000  # nanoseconds: a younger file may change again within one tick of its clock


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of one file.

    Args:
        id: the item's.
        size: bytes.
        time: of its last change, nanoseconds.
        digest: SHA-256 of the file, hexadecimal.
        problem: why it cannot be read; empty where it can.
    """

    id: str
    size: int
    time: int
    digest: str
    problem: str


def readable(
    folder: Folder, items: list[Item], strict: bool = False
) -> tuple[list[Item], list[tuple[str, str]]]:
    """Splits off the items that cannot be read, and reports them.

    Args:
        folder: learns the digests of its files.
        items: what to look through.
        strict: stop where there is one.

    Returns:
        Items that can be read, and (id, reason) of the others, both in the given order.

    Raises:
        OSError: strict, and a photo cannot be read.
    """
    checked = check(folder, items)
    folder.digests |= {one.id: bytes.fromhex(one.digest) for one in checked if one.digest}
    left_out = [(one.id, one.problem) for one in checked if one.problem]
    if left_out and strict:
        named = "; ".join(": ".join(one) for one in left_out[:NAMED])
        more = f"; and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
        raise OSError(
            f"data.strict: {len(left_out)} of {len(items)} photos in {folder.root} cannot be read: "
            f"{named}{more}"
        )
    report([f"{folder.root / name}: {problem}" for name, problem in left_out])
    bad = {name for name, _ in left_out}
    return [item for item in items if item.id not in bad], left_out


def report(problems: list[str]) -> None:
    """Names the first photos that are left out, and counts the rest."""
    for problem in problems[:NAMED]:
        log.warning("left out: %s", problem)
    if len(problems) > NAMED:
        log.warning("left out: %d more", len(problems) - NAMED)


def check(folder: Folder, items: list[Item]) -> list[Checked]:
    """Every item's file, decoded in threads where it is not known already."""
    memory = Memory(folder.root)
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    checked: list[Checked] = []
    if len(items) > len(memory.known) + MANY:
        log.info("looking through %d photos, once, for such that cannot be read", len(items))
    with (
        ThreadPoolExecutor(default_workers()) as pool,
        Progress(len(items), "photos looked at") as bar,
    ):
        for some in pool.map(lambda chunk: [examine(folder, i, memory) for i in chunk], chunks):
            memory.add(some)
            checked += some
            bar.advance(len(some))
    memory.tidy(checked)
    return checked


def examine(folder: Folder, item: Item, memory: "Memory") -> Checked:
    """One file: what is remembered of it, or what decoding it says."""
    path = folder.path(item)
    try:
        state = path.stat()
        known = memory.known.get(item.id)
        if known and (known.size, known.time) == (state.st_size, state.st_mtime_ns):
            return known
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return Checked(item.id, 0, 0, "", error.strerror or str(error))
    try:
        problem = problem_of(path)
    except UnreadableImage as error:  # no digest: it is not remembered
        return Checked(item.id, 0, 0, "", reason(error, path))
    return Checked(item.id, state.st_size, state.st_mtime_ns, digest, problem)


def problem_of(path: Path) -> str:
    """Why a file cannot be read; empty where it can.

    A JPEG's every bit is read, whatever the size it is decoded in; the smallest is the fastest.

    Raises:
        UnreadableImage: the machine failed, so nothing is known of the file.
    """
    try:
        read(path, at_least=(1, 1))
    except UnreadableImage as error:
        if error.passing:
            raise
        return reason(error, path)
    return ""


def reason(error: UnreadableImage, path: Path) -> str:
    """An error's own words, without the file's name."""
    return str(error).removeprefix(f"{path}: ")


class Memory:
    """What earlier scans of a folder found.

    Args:
        root: the folder that ids are relative to.

    Attributes:
        known: by id.
    """

    def __init__(self, root: Path):
        stamp = f"{RULES} {PIL.__version__} {pi_heif.__version__} {root.resolve()}"
        name = hashlib.sha256(os.fsencode(stamp)).hexdigest()[:32]
        self.file = memory_folder() / f"{name}.jsonl"
        self.known: dict[str, Checked] = {}
        self.lines = 0
        self.works = True
        self.load()

    def load(self) -> None:
        """Reads the file; lines that are not whole are passed over."""
        try:
            with self.file.open(encoding="ascii", errors="replace") as file:
                for line in file:
                    self.lines += 1
                    if one := parsed(line):
                        self.known[one.id] = one
        except FileNotFoundError:
            return
        except OSError as error:
            self.give_up(error)

    def add(self, checked: list[Checked]) -> None:
        """Writes down what is new."""
        new = [one for one in settled(checked) if self.known.get(one.id) != one]
        if not new or not self.works:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab") as file:  # one write: two scans at once do not mix lines
                file.write(b"\n" + as_lines(new))
        except OSError as error:
            self.give_up(error)
        self.lines += len(new)

    def tidy(self, checked: list[Checked]) -> None:
        """Writes the file anew where most of it is out of date; what was not looked at now is kept.

        A table of a few photos shares the memory of the folder that it lies in.
        """
        kept = self.known | {one.id: one for one in settled(checked)}
        if self.works and self.lines > 2 * len(kept) + MANY:
            part = self.file.with_suffix(f".{os.getpid()}")
            try:
                part.write_bytes(as_lines(list(kept.values())))
                os.replace(part, self.file)
            except OSError as error:
                self.give_up(error)

    def give_up(self, error: OSError) -> None:
        """Goes on without a memory."""
        self.works = False
        log.warning("what a scan finds is not remembered: %s: %s", self.file, error.strerror)


def memory_folder() -> Path:
    """Where scans are remembered: VIT_SCAN_CACHE, or in the user's cache folder."""
    named = os.environ.get("VIT_SCAN_CACHE")
    return Path(named) if named else user_cache() / "scan"


def settled(checked: list[Checked]) -> list[Checked]:
    """Those whose file was there, and has not changed just now."""
    latest = time.time_ns() - SETTLED
    return [one for one in checked if one.digest and one.time < latest]


def as_lines(checked: list[Checked]) -> bytes:
    """JSON arrays, one a line; \\u escapes stand for all that is not ASCII."""
    return "".join(json.dumps(astuple(one)) + "\n" for one in checked).encode("ascii")


def parsed(line: str) -> Checked | None:
    """The inverse of `as_lines` for one line; None where it is damaged."""
    try:
        one = Checked(*json.loads(line))
        bytes.fromhex(one.digest)
    except (ValueError, TypeError):
        return None
    return one
