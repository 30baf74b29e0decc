"""Where this program keeps what it can fetch or find out again: data sets, weights, scans."""

import os
from pathlib import Path


def user_cache() -> Path:
    """The folder of this program in XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit"
