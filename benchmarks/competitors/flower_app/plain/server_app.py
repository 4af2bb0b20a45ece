"""The ServerApp: federated averaging over all nodes; one line of JSON after each round."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from plain.task import accuracy, arrays, build_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; when each one ended, and how accurate it was, goes to ``rounds.jsonl``."""
    config = context.run_config
    folder = str(config["data"])
    torch.manual_seed(0)
    model = build_model(str(config["model"]), arrays(folder)["train_images"][0].size)

    def evaluate(number: int, weights: ArrayRecord) -> MetricRecord:
        model.load_state_dict(weights.to_torch_state_dict())
        score = accuracy(model, folder)
        with open(Path(folder) / "rounds.jsonl", "a", encoding="utf-8") as file:
            row = {"round": number, "time": time.time(), "accuracy": score}
            file.write(json.dumps(row) + "\n")
        return MetricRecord({"accuracy": score})

    FedAvg(fraction_evaluate=0.0).start(
        grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-rounds"]),
        evaluate_fn=evaluate,
    )
