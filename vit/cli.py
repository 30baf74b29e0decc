"""The command line: `vit COMMAND ...`, also as `python -m vit` and, for train, `python train.py`.

Exit codes: 0 fine; 1 the data, or the training, went wrong; 2 wrong usage; 130 / 143 stopped by
Ctrl-C / SIGTERM.
"""

import argparse
import logging
import os
import shlex
import sys
import warnings
from importlib import import_module
from pathlib import Path

from vit.items import DataError

COMMANDS = {
    "train": "train a network by a configuration, or go on with a run",
    "predict": "what a trained network says of photos, a row for each",
    "evaluate": "score a trained network on labelled photos",
    "attend": "see on photos where a network looks",
    "check": "look a folder of photos over before training",
    "export": "write a trained network for other programs, as ONNX or torch.export",
    "models": "list the pretrained networks that can be used",
    "runs": "one table of all runs",
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None, program: str = "vit") -> int:
    """Carries out one command line and returns its exit code.

    Args:
        arguments: the words after the program's name; None takes the process's.
        program: how the program is called in messages.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    configure_messages()
    if not words or words[0] in ("-h", "--help"):
        print(overview(program))
        return 0 if words else 2
    if words[0] == "--version":
        from vit import __version__

        print(f"vit {__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        from vit.nearest import nearest

        known = ", ".join(COMMANDS)
        hint = nearest(name, list(COMMANDS))
        print(f'{program}: no command "{name}" (there are: {known}){hint}', file=sys.stderr)
        return 2
    return carry_out(name, rest, f"{program} {name}")


def train(arguments: list[str] | None = None) -> int:
    """`python train.py ...`: the command train."""
    configure_messages()
    words = list(sys.argv[1:] if arguments is None else arguments)
    return carry_out("train", words, "train.py")


def carry_out(name: str, words: list[str], program: str) -> int:
    """Runs one command and turns its exceptions into one line and an exit code."""
    # PyTorch's OpenMP threads wait for each other by spinning, by default so long that a small
    # network trains twenty times slower once another program uses a core; not at all costs half
    # the speed of an idle machine. A short spin keeps 94 % of it. Read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    command = import_module(f"vit.commands.{name}")
    parser = Parser(prog=program, description=COMMANDS[name], allow_abbrev=False)
    command.add_arguments(parser)
    try:
        if hasattr(command, "print_help"):  # train: its settings are no argparse options
            if {"-h", "--help"} & set(words):
                parser.usage = "%(prog)s [--config NAME] [--section.name VALUE ...]"
                command.print_help(parser)
                return 0
            known, others = parser.parse_known_args(words)
            return command.run(known, overrides(others))
        return command.run(parser.parse_args(words))
    except SystemExit as stop:  # argparse: --help or wrong usage
        return int(stop.code or 0)
    except (Exception, KeyboardInterrupt) as error:
        return explain_failure(error, program, words)


def overrides(words: list[str]) -> dict[str, str]:
    """["--optim.lr", "1", "--data.flip=0.5"] -> {"optim.lr": "1", "data.flip": "0.5"}.

    Raises:
        ValueError: a word that is no option, or an option without a value.
    """
    values, rest = {}, list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(
                f'"{word}" is not understood: settings are given as --section.name VALUE'
            )
        key, equals, value = word[2:].partition("=")
        if not equals:
            from vit.config import check_keys

            check_keys([key], "the command line")  # a misspelt key first, then its value
            if not rest or rest[0].startswith("--"):
                raise ValueError(f"--{key} needs a value")
            value = rest.pop(0)
        values[key] = value
    return values


def explain_failure(error: BaseException, program: str, words: list[str]) -> int:
    """One line on stderr and the exit code for an exception; what is no user's fault is raised."""
    if isinstance(error, BrokenPipeError):
        # What is still buffered must not be written, and complained of, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, KeyboardInterrupt):
        print(f"{program}: stopped by Ctrl-C", file=sys.stderr)
        return 130
    if type(error).__name__ == "Stopped":  # by name: its module would import Lightning
        return after_stop(error, program, words)
    ours = Path(__file__).parent in Path(last_file(error)).parents
    expected = isinstance(error, (FloatingPointError, MemoryError, OSError))
    if expected or (isinstance(error, ValueError) and ours):
        print(f"{program}: {error}", file=sys.stderr)
        usage = isinstance(error, ValueError) and not isinstance(error, DataError)
        return 2 if usage else 1
    raise error


def last_file(error: BaseException) -> str:
    """The source file that raised an exception."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename if trace else ""


def after_stop(stopped, program: str, words: list[str]) -> int:
    """Says how to go on after a signal; returns 130 or 143."""
    start = "python train.py" if program == "train.py" else program
    print(f"\nstopped by {stopped}, everything is saved; go on with", file=sys.stderr)
    print(f"  {start} --resume {shlex.quote(str(stopped.folder))}", file=sys.stderr)
    return 128 + stopped.number


def overview(program: str) -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {words}" for name, words in COMMANDS.items()]
    return (
        f"usage: {program} COMMAND ...\n\nA Vision Transformer for image classification.\n\n"
        + "\n".join(lines)
        + f"\n\n{program} COMMAND --help says more. The Python functions: import vit."
    )


def configure_messages() -> None:
    """The library's messages go to stderr, as they are; no name of a file stops what is printed."""
    # As stderr is by itself. Not where it is replaced, nor in the C locale, which keeps any name.
    if hasattr(sys.stdout, "reconfigure") and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    # What Pillow says of odd but readable files; unreadable ones are our own errors.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    logger = logging.getLogger("vit")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
