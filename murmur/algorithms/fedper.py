"""Personal layers: which parameters of a model are shared, and which stay with each client.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers",
arXiv:1912.00818: base layers W_B are averaged, personalisation layers W_P never leave. Parameters
travel in the order of the model's own layers, so W_B is the beginning of the vector.
"""

import torch

from murmur.learning.training.trainer import Trainer


def shared_size(trainer: Trainer, personal_layers: int) -> int:
    """|W_B|: how many parameters of the vector (d,) both halves share.

    A layer is what PyTorch names one: its weight and its bias go together. Both halves ask with the
    same model, and so agree on where the shared part of the vector ends.

    Args:
        trainer: whose model it is.
        personal_layers: how many of the model's last layers that have parameters are personal.

    Raises:
        ValueError: no layer would be personal, or none shared.
    """
    places = trainer.flat.views(torch.arange(trainer.num_parameters))
    starts: dict[str, int] = {}
    for name, place in places.items():
        layer = name.rpartition(".")[0]
        starts.setdefault(layer, int(place.flatten()[0]))
    if not 1 <= personal_layers < len(starts):
        raise ValueError(
            f"personal_layers={personal_layers}: must be at least 1, and fewer than the "
            f"{len(starts)} layers of this model that train"
        )
    return sorted(starts.values())[-personal_layers]
