"""The YAML files of configurations: where they are, and what one holds."""

from pathlib import Path

import yaml

from vit.nearest import nearest

# Data that has no configuration of its name: what to give instead.
DATA_WITHOUT_CONFIGURATION = {
    "digits": "quickstart",
    "mnist": "fashion_mnist --data.source mnist",
    "folder": "finetune --data.root FOLDER",
}


class UniqueKeys(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, of which YAML would silently take the second."""

    def construct_mapping(self, node, deep=False):
        seen = []  # a key may be what cannot be in a set, which is refused below
        for named, _ in node.value:
            key = self.construct_object(named, deep)
            if key in seen:
                said = f'"{key}" is given twice'
                raise yaml.constructor.ConstructorError(None, None, said, named.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)


def find(name: str) -> Path:
    """The file of a configuration: a path, or the name of a packaged one.

    Raises:
        ValueError: neither; names the packaged ones.
    """
    if Path(name).is_file():
        return Path(name)
    for folder in packaged():
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = sorted(path.stem for folder in packaged() for path in folder.glob("*.yaml"))
    raise ValueError(
        f'no configuration "{name}": give a YAML file or one of {", ".join(known)}'
        + meant_as_data(name, known)
    )


def meant_as_data(name: str, known: list[str]) -> str:
    """What to give where the name of a configuration is one of data; else the nearest name."""
    if Path(name).is_dir():
        return f'; did you mean "--config finetune --data.root {name}"?'
    if name in DATA_WITHOUT_CONFIGURATION:
        return f'; did you mean "--config {DATA_WITHOUT_CONFIGURATION[name]}"?'
    return nearest(name, known)


def packaged() -> list[Path]:
    """The folder of the configurations that come with the package (wheel, or a checkout)."""
    here = Path(__file__).parent
    return [folder for folder in (here / "configs", here.parent / "configs") if folder.is_dir()]


def read(path: Path) -> dict:
    """The sections of a configuration's file.

    Raises:
        ValueError: it is not YAML, or holds no sections.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), UniqueKeys) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold the sections data, model, optim, run, trainer")
    return values
