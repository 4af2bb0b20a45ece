"""What an engine gives to Flower: all of the app, and nothing else of the project's folder."""

from pathlib import Path

from flwr.cli.build import build_fab_from_disk, build_fab_from_files

from fl_app.engines.deploy import copy_app

PROJECT = Path(__file__).resolve().parents[3]


def test_the_copy_packs_to_what_the_whole_folder_would(tmp_path):
    app = copy_app(PROJECT, tmp_path / "app")
    packages = ("fl_app", "strategies", "clients", "murmur")
    paths = [path for name in packages for path in (PROJECT / name).rglob("*.py")]
    paths += [*(PROJECT / "conf").rglob("*.yaml"), PROJECT / "pyproject.toml"]
    files = {path.relative_to(PROJECT).as_posix(): path for path in paths}
    assert build_fab_from_disk(app) == build_fab_from_files(files)[0]


def test_environment_and_results_are_left_out(tmp_path):
    project = tmp_path / "project"
    for name in ("fl_app/cli.py", ".venv/lib/x.py", "runs/one/config.yaml", "conf/config.yaml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    (project / "pyproject.toml").write_text((PROJECT / "pyproject.toml").read_text())
    app = copy_app(project, tmp_path / "app")
    copied = {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_file()}
    assert copied == {"pyproject.toml", "fl_app/cli.py", "conf/config.yaml"}
