"""Apple's pfl on the same clients: run by the Python of an environment of its own.

    torchrun --nproc-per-node 2 -m benchmarks.competitors.pfl_app DATA --model cnn --rounds 2

Its own simulated backend, federated averaging, in-memory federated data set and distributed
central evaluation; processes share each cohort through ``torch.distributed`` (gloo). Prints one
line of JSON: the seconds of each round and the accuracy after the last.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.competitors.flower_app.plain.task import (
    arrays,
    build_model,
    client_data,
    test_data,
)


class Classifier(torch.nn.Module):
    """The shared model with the two functions that pfl asks of a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.model(images)

    def loss(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """Mean cross-entropy."""
        self.eval() if eval else self.train()
        return torch.nn.functional.cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(
        self, images: torch.Tensor, labels: torch.Tensor, eval: bool = True
    ) -> dict[str, Weighted]:
        """Accuracy."""
        self.eval() if eval else self.train()
        correct = (self(images).argmax(1) == labels).sum().item()
        return {"accuracy": Weighted(correct, len(labels))}


class Clock(TrainingProcessCallback):
    """When each round ended, and the last accuracy; listed after the central evaluation."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.accuracy = 0.0

    def on_train_begin(self, *, model: PyTorchModel):
        """Start."""
        self.times.append(time.perf_counter())
        from pfl.metrics import Metrics

        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration: int):
        """One more round."""
        self.times.append(time.perf_counter())
        values = {str(name): value for name, value in aggregate_metrics.to_simple_dict().items()}
        self.accuracy = next((v for k, v in values.items() if "accuracy" in k), self.accuracy)
        return False, type(aggregate_metrics)()


def main() -> None:
    """Train as pfl's own benchmarks do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--cohort", type=int, help="clients of a round; all if not set")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    set_framework_module(pytorch_ops)
    content = arrays(options.data)
    clients = list(range(len(content["offsets"]) - 1))
    device = pytorch_ops.get_default_device()
    data = {k: [t.to(device) for t in client_data(options.data, k)] for k in clients}
    classifier = Classifier(build_model(options.model, content["train_images"][0].size))
    classifier.to(device)
    model = PyTorchModel(
        classifier, torch.optim.SGD, torch.optim.SGD(classifier.parameters(), lr=1.0)
    )

    def user(client: int) -> Dataset:
        images, labels = data[client]
        order = torch.randperm(len(labels), device=device)
        return Dataset(raw_data=[images[order], labels[order]], user_id=str(client))

    training = FederatedDataset(
        user,
        get_user_sampler("minimize_reuse", clients),
        user_id_to_weight={k: len(data[k][1]) for k in clients},
    )
    clock = Clock()
    central = Dataset(raw_data=[t.to(device) for t in test_data(options.data)])
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=options.rounds + 1,
            train_cohort_size=options.cohort or len(clients),
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=training, val_data=None),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=options.learning_rate,
            local_batch_size=options.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=500),
        callbacks=[
            CentralEvaluationCallback(central, NNEvalHyperParams(local_batch_size=500)),
            clock,
        ],
    )
    if _is_first():
        rounds = [b - a for a, b in zip(clock.times, clock.times[1:], strict=False)]
        print(json.dumps({"rounds": rounds, "accuracy": clock.accuracy}))


def _is_first() -> bool:
    """Whether this process speaks for all."""
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


if __name__ == "__main__":
    main()
