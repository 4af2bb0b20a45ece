"""Federated learning on one machine: data sets, partitions, models, training and evaluation.

Images are float32 (N, C, H, W), models are flat float32 vectors (d,); every result is a function of
its arguments. Nothing here knows privacy's budgets, Flower, Hydra or Ray.

>>> from functools import partial
>>> import numpy as np
>>> from murmur.learning import IID, Trainer, digits, experiment_rng, mlp
>>> data, seed = digits(), 1
>>> images, labels = data.train.images, data.train.labels
>>> shares = IID()(labels, 10, data.num_classes, experiment_rng(seed, "partition"))
>>> trainer = Trainer(partial(mlp, hidden=[32]), data.input_shape, data.num_classes)
>>> model = trainer.initial(experiment_rng(seed, "model"))
>>> for number in range(5):  # federated averaging
...     models = []
...     for client, indices in enumerate(shares):
...         trainer.load(model)
...         rng = experiment_rng(seed, "local training", number, client)
...         settings = {"rng": rng, "batch_size": 8, "lr": 0.3, "epochs": 1}
...         models.append(trainer.train(images, labels, indices=indices, **settings))
...     model = np.mean(models, axis=0)
>>> trainer.load(model)
>>> trainer.evaluate(data.test.images, data.test.labels).accuracy > 0.8
True
"""

import importlib
from typing import Any

_MODULES = {
    "murmur.learning.clustering": ("autoencoder",),
    "murmur.learning.codec": ("BitCodec", "LabelCodec", "WeightCodec"),
    "murmur.learning.data.class_counts": ("label_counts",),
    "murmur.learning.data.datasets": ("digits", "medmnist", "torchvision_dataset"),
    "murmur.learning.data.examples": ("DataError", "Dataset", "Examples"),
    "murmur.learning.data.own_data": ("csv", "image_folder", "npz"),
    "murmur.learning.data.partitions": (
        "IID",
        "Dirichlet",
        "QuantitySkew",
        "Shards",
    ),
    "murmur.learning.sums": ("SumAccumulator",),
    "murmur.learning.metrics": ("Evaluation", "area_under_curve", "evaluate_logits"),
    "murmur.learning.features.maps": ("pca", "scattering"),
    "murmur.learning.models": ("cnn_16", "cnn_small", "cnn_tanh", "mlp"),
    "murmur.random": ("experiment_rng",),
    "murmur.learning.training.trainer": ("Trainer",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import what is asked for, and no more: PyTorch takes seconds."""
    if name not in _HOME:
        raise AttributeError(
            f"module 'murmur.learning' has no attribute {name!r}; it has {__all__}"
        )
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
