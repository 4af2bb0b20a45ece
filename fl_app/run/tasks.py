"""Which tasks a run may have, by its strategy and its other settings, on servers and devices."""

from omegaconf import DictConfig

from fl_app.config.errors import ConfigError
from fl_app.config.instantiate import class_of
from murmur.learning.objective import CLASSIFICATION


def require_task(config: DictConfig) -> None:
    """Refuse a task that the strategy does not say it learns, and what reads classes.

    Server and devices ask it before anything of a run is built, so before data are opened.

    Raises:
        ConfigError: names the task, and what learns it.
    """
    task = config.task
    strategy = class_of(config.strategy.server, "strategy")
    learnt = vars(strategy).get("tasks", (CLASSIFICATION.kind,))
    if task not in learnt:
        raise ConfigError(
            f"task={task}: strategy={config.strategy.name} learns {' or '.join(learnt)} only; "
            "choose strategy=fedavg or one of its family, "
            "dp_fedavg, dpsgd_fedavg or gradient_rounds"
        )
    if task == CLASSIFICATION.kind:
        return
    if config.evaluation.server is not None or config.evaluation.client is not None:
        raise ConfigError(
            f"task={task}: clients' protected evaluation counts classes; set evaluation=none"
        )
    if config.model.get("start") in ("names", "rates"):
        raise ConfigError(
            f"model.start={config.model.start}: is made of classes, and task={task} has none; set "
            "model.start=null"
        )
