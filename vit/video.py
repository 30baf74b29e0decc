"""Moving pictures: the frames of animations and videos, upright and timed, and a video written.

Animations (GIF, APNG, WebP, AVIF) are read by Pillow; videos are read, and all are written, by PyAV,
which is the extra "video".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from vit.colour import to_rgb
from vit.formats import open_image, prepare_pillow
from vit.images import MAX_PIXELS, Photo, UnreadableImage

ANIMATIONS = ("GIF", "PNG", "WEBP", "AVIF")
VIDEOS = frozenset(
    [
        ".3gp",
        ".avi",
        ".m4v",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".ogv",
        ".ts",
        ".webm",
        ".wmv",
    ]
)
ENCODERS = ("libx264", "libopenh264", "mpeg4")  # the first that PyAV was built with
DEFAULT_SECONDS = 0.1  # of a frame that names no duration; browsers do the same
CLOCK = Fraction(1, 90_000)  # ticks in which frames are timed


@dataclass(frozen=True)
class Frame:
    """One picture of a moving one.

    Args:
        photo: upright RGB.
        seconds: when it is shown, from the beginning; each later than the one before.
        duration: for how many seconds.
    """

    photo: Photo
    seconds: float
    duration: float = DEFAULT_SECONDS


def is_moving(path: str) -> bool:
    """Whether a file is a video, by its name, or an animation of several frames, by its content."""
    if Path(path).suffix.lower() in VIDEOS:
        return True
    prepare_pillow()
    try:
        with open(path, "rb") as stream:
            image = open_image(stream)
            return image.format in ANIMATIONS and getattr(image, "n_frames", 1) > 1
    except Exception:  # whatever is wrong with a photo is said where it is read
        return False


def frames(path: str) -> Iterator[Frame]:
    """The frames of an animation or a video, one after another.

    Raises:
        UnreadableImage: the file is broken; says after which frame.
        ValueError: a video, and PyAV is not installed.
    """
    video = Path(path).suffix.lower() in VIDEOS
    count, before = 0, -1.0
    library = av() if video else None
    try:
        for frame in of_video(path, library) if video else of_animation(path):
            # Some files repeat a time, which a written video cannot.
            seconds = frame.seconds if frame.seconds > before else before + float(CLOCK)
            yield replace(frame, seconds=seconds)
            count, before = count + 1, seconds
    except Exception as error:  # broken files make Pillow raise nearly everything
        words = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableImage(f"broken after {count} frames: {words}") from error
    if not count:
        raise UnreadableImage("no frames in this video")


def of_animation(path: str) -> Iterator[Frame]:
    """Pillow's frames, composited, on white where they are transparent."""
    prepare_pillow()
    with open(path, "rb") as stream:
        image, seconds = open_image(stream), 0.0
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"frames of {image.width}x{image.height} pixels are too large")
        for one in ImageSequence.Iterator(image):
            one.load()
            rgb, _ = to_rgb(one)
            shown = one.info.get("duration", 0) / 1000 or DEFAULT_SECONDS
            yield Frame(Photo(rgb, rgb.height, rgb.width, format=image.format), seconds, shown)
            seconds += shown


def of_video(path: str, library) -> Iterator[Frame]:
    """PyAV's frames, turned as the file says: phones film sideways."""
    with library.open(path) as container:
        if not container.streams.video:
            return
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        first, following = None, 0.0
        usual = float(1 / stream.average_rate) if stream.average_rate else DEFAULT_SECONDS
        for frame in container.decode(stream):
            seconds = following if frame.time is None else float(frame.time)
            shown = float((frame.duration or 0) * (frame.time_base or 0)) or usual
            following = seconds + shown
            first = seconds if first is None else first
            turns = round((getattr(frame, "rotation", 0) or 0) / 90) % 4
            pixels = np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))
            image = Image.fromarray(pixels)
            photo = Photo(image, image.height, image.width, format=container.format.name)
            yield Frame(photo, seconds - first, shown)


@contextmanager
def writer(path: Path, height: int, width: int):
    """While it lasts, `write(pixels, seconds, duration)` adds a frame (height, width, 3) to an MP4.

    Each frame is shown until the next one, the last one for its duration. Neither dates nor
    versions are written: the same frames give the same bytes.

    Raises:
        ValueError: an odd size, which video cannot have, or PyAV is not installed.
    """
    if height % 2 or width % 2:
        raise ValueError(f"a video's sides must be even numbers of pixels, got {height}x{width}")
    library = av()
    flags = {"fflags": "+bitexact", "movflags": "+faststart"}
    with library.open(str(path), "w", format="mp4", options=flags) as container:
        stream = container.add_stream(encoder(library), rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = stream.codec_context.time_base = CLOCK
        stream.codec_context.thread_count = 1  # the same bytes on any machine
        stream.options = {"crf": "18", "preset": "medium", "flags": "+bitexact"}

        last = DEFAULT_SECONDS

        def write(pixels: np.ndarray, seconds: float, duration: float = DEFAULT_SECONDS) -> None:
            nonlocal last
            frame = library.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = round(seconds / CLOCK), CLOCK
            last = duration
            container.mux(stream.encode(frame))

        yield write
        for packet in stream.encode():
            packet.duration = round(last / CLOCK)
            container.mux(packet)


def encoder(library) -> str:
    """The best encoder there is.

    Raises:
        ValueError: none.
    """
    for name in ENCODERS:
        if name in library.codecs_available:
            return name
    raise ValueError(f"this build of PyAV writes no video: it has none of {', '.join(ENCODERS)}")


def av():
    """PyAV.

    Raises:
        ValueError: it is not installed; says how.
    """
    try:
        import av as library
    except ImportError as error:
        raise ValueError(
            "animations and videos need PyAV, which is not installed: pip install av"
        ) from error
    return library
