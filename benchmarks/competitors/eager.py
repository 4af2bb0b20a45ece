"""The bare eager loop: federated averaging in PyTorch, one thread, nothing else.

    python -m benchmarks.competitors.eager DATA --model cnn --rounds 2

Prints one line of JSON: the seconds of each round and the accuracy after the last.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from benchmarks.competitors.flower_app.plain.task import (
    accuracy,
    arrays,
    build_model,
    client_data,
)


def main() -> None:
    """Every client in turn starts from the global model; then the mean of all weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    content = arrays(options.data)
    model = build_model(options.model, content["train_images"][0].size)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    clients = [client_data(options.data, k) for k in range(len(content["offsets"]) - 1)]
    examples = sum(len(labels) for _, labels in clients)
    criterion, seconds, score = torch.nn.CrossEntropyLoss(), [], 0.0
    for _ in range(options.rounds):
        start = time.perf_counter()
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        for images, labels in clients:
            model.load_state_dict(weights)
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
            for batch in torch.randperm(len(labels)).split(options.batch_size):
                optimizer.zero_grad()
                criterion(model(images[batch]), labels[batch]).backward()
                optimizer.step()
            for name, value in model.state_dict().items():
                total[name] += value * (len(labels) / examples)
        weights = total
        model.load_state_dict(weights)
        score = accuracy(model, options.data)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"rounds": seconds, "accuracy": score}))


if __name__ == "__main__":
    main()
