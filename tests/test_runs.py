"""Run folders and their tables."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from vit import runs


def test_two_processes_never_share_a_folder(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: runs.create(tmp_path, "x").path.name, range(24)))
    assert sorted(map(int, made)) == list(range(1, 25))


def test_numbers_go_on_and_other_names_are_ignored(tmp_path):
    (tmp_path / "x" / "7").mkdir(parents=True)
    (tmp_path / "x" / "notes").mkdir()
    assert runs.create(tmp_path, "x").path.name == "8"


def test_a_run_that_failed_before_it_began_leaves_nothing(tmp_path):
    failed, other = (runs.create(tmp_path, name) for name in "xy")
    failed.remove_if_unused()
    assert not (tmp_path / "x").exists()
    other.config.write_text("")
    failed = runs.create(tmp_path, "y")
    failed.remove_if_unused()
    assert [path.name for path in (tmp_path / "y").iterdir()] == ["1"]


def test_child_processes_get_the_launchers_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(runs.FOLDER_VARIABLE, str(tmp_path))
    assert runs.create(tmp_path / "other", "x").path == tmp_path


def test_only_a_run_that_began_is_reopened(tmp_path):
    with pytest.raises(ValueError, match=r"config.yaml and split.csv are missing"):
        runs.reopen(tmp_path)


def test_tables_are_cut_back_to_whole_rows(tmp_path):
    table = tmp_path / "metrics.csv"
    for epoch in (1, 2, 3):
        runs.append(table, {"epoch": epoch, "loss": 1 / epoch})
    whole = table.read_text()
    with table.open("a") as file:
        file.write("4")  # killed while writing
    runs.cut_back(table, 3)
    assert table.read_text() == whole
    runs.cut_back(table, 1)
    assert [row["epoch"] for row in runs.read(table)] == ["1"]
    runs.cut_back(table, 0)
    assert runs.read(table) == []
    runs.append(table, {"epoch": 1, "loss": 2})
    assert table.read_text().splitlines() == ["epoch,loss", "1,2"]
