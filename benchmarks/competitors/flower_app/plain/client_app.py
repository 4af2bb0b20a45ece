"""The ClientApp: one client trains on its own data and sends its weights."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from plain.task import arrays, build_model, load_data, train

app = ClientApp()


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train the global model on this node's client."""
    config = context.run_config
    folder = str(config["data"])
    model = build_model(str(config["model"]), arrays(folder)["train_images"][0].size)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    batches = load_data(folder, client, int(config["batch-size"]))
    train(model, batches, int(config["local-epochs"]), float(config["learning-rate"]))
    content = RecordDict()
    content["arrays"] = ArrayRecord(model.state_dict())
    content["metrics"] = MetricRecord({"num-examples": len(batches.dataset)})
    return Message(content, reply_to=message)
