"""Ray's workers stay warm from run to run, and change no result."""

import pytest
from safetensors.numpy import load_file

from fl_app.engines.ray import RayEngine
from fl_app.engines.ray_pool import RayPool
from fl_app.run.results import RunFolder
from tests.fl_app.running import SMALL, run_inline

WORDS = [word for word in SMALL if not word.startswith("engine")]


@pytest.fixture
def engine():
    yield RayEngine(workers=2, warm=True)
    if RayPool._shared is not None:
        RayPool._shared.stop()


def test_warm_workers_serve_run_after_run_with_the_results_of_the_inline_engine(tmp_path, engine):
    pools = []
    for seed in (1, 2):
        folder = RunFolder(tmp_path / f"ray-{seed}")
        engine.run([*WORDS, f"seed={seed}", f"run_dir={folder.path}"], folder)
        pools.append(RayPool._shared)
        inline = run_inline(tmp_path / f"inline-{seed}", f"seed={seed}")
        for run in (folder, inline):
            assert [row["failed"] for row in run.rows()] == [{}, {}, {}]
            assert [row["answered"] for row in run.rows()] == [0, 6, 6]
        assert folder.metrics()["accuracy"] == inline.metrics()["accuracy"]
        ours, theirs = (load_file(r.path / "model.safetensors") for r in (folder, inline))
        assert {k: v.tobytes() for k, v in ours.items()} == {
            k: v.tobytes() for k, v in theirs.items()
        }
        assert not (folder.path / "flower.log").exists()
    assert pools[0] is pools[1]
