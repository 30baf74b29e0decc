"""How many processor cores this process may use."""

import os


def default_workers() -> int:
    """A thread per core that this process may use: containers and `taskset` allow fewer than all."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1
