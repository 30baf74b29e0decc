"""The direction of imports: each module imports only from a smaller level than its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vit"
LEVELS = [
    "settings items output_names runs spectrum grouping cores user_cache nearest",
    "config_files trainer_settings near architecture attention patch_embed colour image_operations",
    "config overlay metrics lettering",
    "class_names rows commands.progress formats auto_augment calibration pieces typeset marks",
    "attention_tiles images class_folders tables augment mixing blocks pooling memory loggers sheet",
    "fitting",
    "archives folder model normalise recognise catalogue timm_config legend canvas video",
    "weights lora page captions",
    "attention_rows datasets scan layouts",
    "sinks gradients attention_maps head_maps survey",
    "class_maps giveaway",
    "methods",
    "explain findings",
    "loaders photos figures tuning balance copies",
    "opener checkup",
    "stream",
    "data classifier probe inference score_figures probe_figure contact_sheet",
    "model_file evaluation result_pictures",
    "pretrained export question",
    "looking",
    "model_source views origin",
    "training_progress commands.options depict",
    "callbacks",
    "assembly filming",
    "commands.finish commands.fit_probe attending",
    "commands.train commands.predict commands.export commands.evaluate commands.attend",
    "commands.runs commands.models commands.check",
    "cli",
    "__main__",
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names.split()}
# For annotations alone, under `if TYPE_CHECKING:`; never executed.
FOR_TYPES = {
    ("inference", "model_file"),
    ("evaluation", "model_file"),
    ("training_progress", "callbacks"),
}


def imported(path: Path) -> set[str]:
    """The modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "vit":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "vit.commands":
            found |= {f"commands.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found |= {name.removeprefix("vit.") for name in names if name.startswith("vit.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vit."):
            found.add(node.module.removeprefix("vit."))
    return found - {"__version__"}


def modules() -> dict[str, Path]:
    paths = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    return {
        path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path
        for path in paths
    }


def test_every_module_has_a_level():
    assert set(modules()) == set(LEVEL)


@pytest.mark.parametrize("name", LEVEL)
def test_imports_point_downwards(name):
    for other in imported(modules()[name]):
        allowed = (name, other) in FOR_TYPES
        assert allowed or LEVEL[other] < LEVEL[name], f"{name} imports {other}"


def loaded_by(code: str) -> set[str]:
    """Top-level modules that Python has loaded after running `code` in a fresh process."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    return set(done.stdout.splitlines()[-1].split())


def test_import_vit_is_light():
    assert not loaded_by("import vit; dir(vit)") & {"torch", "lightning", "timm", "numpy", "PIL"}


def test_help_is_light():
    commands = (
        ["train", "--help"],
        ["evaluate", "--help"],
        ["attend", "--help"],
        ["check", "--help"],
        ["models", "--help"],
        ["models", "deit"],
    )
    for words in (["--help"], *commands):
        heavy = loaded_by(f"from vit.cli import main; main({words})") & {
            "torch",
            "lightning",
            "timm",
        }
        assert not heavy, words


def test_evaluation_needs_neither_lightning_nor_timm():
    loaded = loaded_by("import vit.commands.evaluate, vit.inference, vit.model_file, vit.explain")
    assert not loaded & {"lightning", "timm", "torchmetrics"}


def test_the_network_needs_torch_alone():
    loaded = loaded_by("import vit; vit.VisionTransformer; vit.rollout; vit.load")
    assert "torch" in loaded
    assert not loaded & {"lightning", "timm", "torchvision", "torchmetrics"}
