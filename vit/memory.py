"""Out of memory in training: found out by trying, which batch would have fitted."""

import gc
from collections.abc import Callable

import torch

# How the allocators of PyTorch's devices say it, where it is no torch.OutOfMemoryError.
SAID = ("out of memory", "can't allocate memory", "not enough memory")


def ran_out(error: BaseException) -> bool:
    """Whether an exception means that the device, or the machine, has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SAID)


def fitting(step: Callable[[int], None], batch_size: int) -> int:
    """The largest of batch_size / 2, / 4, ... for which a step has enough memory; 0 for none.

    Args:
        step: makes a whole training step with that many images.
        batch_size: what did not fit.
    """
    while batch_size := batch_size // 2:
        try:
            step(batch_size)
            return batch_size
        except Exception as error:
            if not ran_out(error):
                raise
        release()  # here: while the error is at hand, its frames hold the tensors
    return 0


def release() -> None:
    """Gives memory back that is no longer used, so that the next attempt has all of it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def advice(fits: int, batch_size: int, accumulate: int) -> str:
    """What to type so that it fits, the step staying what it was.

    Args:
        fits: images that fit, 0 for none.
        batch_size: images that did not.
        accumulate: batches per step so far.
    """
    if not fits:
        return (
            "not even one image at a time fits: take a smaller --model.img_size or network, "
            "or larger patches"
        )
    batches = -(-batch_size * accumulate // fits)
    same = "the same step" if batches * fits == batch_size * accumulate else "nearly the same step"
    return (
        f"{fits} fit{'s' if fits == 1 else ''}: --data.batch_size {fits} --optim.accumulate "
        f"{batches} makes {same}"
    )
