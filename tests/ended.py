"""What tests end that a process keeps for its next run."""

import sys


def end_ray() -> None:
    """The pool of this process, and whatever else it started on Ray.

    Nothing is imported for it: Ray reads its settings once, when a run starts it.
    """
    engine = sys.modules.get("fl_app.engines.ray")
    if engine is not None:
        engine.RayPool.end()
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
