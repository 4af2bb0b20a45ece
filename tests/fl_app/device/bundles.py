"""Bundles of plain Flower apps that know nothing of Murmur, and of some that mean harm."""

import io
import zipfile

PROJECT = """
[project]
name = "plain"
version = "1.0.0"

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "plain.server_app:app"
clientapp = "plain.client_app:app"
"""

NUMPY = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from plain.task import rows

app = ClientApp()

@app.train()
def train(message, context):
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    data = rows(context.node_config["data"])
    model = ArrayRecord([weights + data.mean(axis=0).astype(weights.dtype)])
    found = MetricRecord({"num-examples": len(data), "loss": 0.25})
    return Message(RecordDict({"arrays": model, "metrics": found}), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    found = MetricRecord({"num-examples": 2, "accuracy": 0.75})
    return Message(RecordDict({"metrics": found}), reply_to=message)
"""

# Counts in its Context.state how often it was asked in the run.
COUNTING = """
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    seen = context.state.config_records.setdefault("seen", ConfigRecord({"rounds": 0}))
    seen["rounds"] += 1
    found = MetricRecord({"num-examples": 1, "rounds": seen["rounds"]})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": found})
    return Message(content, reply_to=message)
"""

TASK = """
from pathlib import Path
import numpy as np

def rows(folder):
    return np.loadtxt(Path(folder) / "table.csv", delimiter=",", ndmin=2)
"""

TORCH = """
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()

def model():
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    return torch.nn.Sequential(*layers)

@app.train()
def train(message, context):
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x = torch.arange(48.0).reshape(16, 3) / 48
    data = TensorDataset(x, (x.sum(1) > 1).long())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    for features, labels in DataLoader(data, batch_size=8, num_workers=WORKERS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(features), labels)
        loss.backward()
        optimizer.step()
    seen = context.state.config_records.setdefault("seen", ConfigRecord({"rounds": 0}))
    seen["rounds"] += 1
    found = {"num-examples": 16, "loss": float(loss), "rounds": seen["rounds"]}
    arrays = ArrayRecord(net.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(found)}), reply_to=message)
"""

SCIKIT_LEARN = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

app = ClientApp()

@app.train()
def train(message, context):
    place, count = context.node_config["partition-id"], context.node_config["num-partitions"]
    x, labels = load_iris(return_X_y=True)
    model = LogisticRegression(max_iter=3, warm_start=True, solver="saga", random_state=0)
    model.classes_ = np.arange(3)
    model.coef_, model.intercept_ = message.content["arrays"].to_numpy_ndarrays()
    model.fit(x[place::count], labels[place::count])
    arrays = ArrayRecord([model.coef_, model.intercept_])
    found = MetricRecord({"num-examples": 50, "loss": 0.5})
    return Message(RecordDict({"arrays": arrays, "metrics": found}), reply_to=message)
"""

HUGGING_FACE = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from transformers import BertConfig, BertForSequenceClassification

app = ClientApp()

def model():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=30, intermediate_size=8, num_labels=2, **sizes)
    net = BertForSequenceClassification(config)
    net.bert.requires_grad_(False)
    return net.eval()

@app.train()
def train(message, context):
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=True)
    optimizer = torch.optim.AdamW(net.classifier.parameters(), lr=0.01)
    tokens = torch.randint(30, (8, 5), generator=torch.Generator().manual_seed(1))
    net(input_ids=tokens, labels=tokens[:, 0] % 2).loss.backward()
    optimizer.step()
    arrays = ArrayRecord(net.state_dict())
    found = MetricRecord({"num-examples": 8})
    return Message(RecordDict({"arrays": arrays, "metrics": found}), reply_to=message)
"""

OPACUS = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()

@app.train()
def train(message, context):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x = torch.arange(48.0).reshape(16, 3) / 48
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    private, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(x, (x.sum(1) > 1).long()), batch_size=8),
        noise_multiplier=0.5,
        max_grad_norm=1.0,
    )
    for features, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(private(features), labels).backward()
        optimizer.step()
    arrays = ArrayRecord(net.state_dict())
    found = MetricRecord({"num-examples": 16})
    return Message(RecordDict({"arrays": arrays, "metrics": found}), reply_to=message)
"""

# What it does depends on the round: each is a way to harm its device, or not to answer it.
HARMFUL = """
import ctypes, os, sys, time
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

def everywhere(text):
    for number in range(3, 20):
        try:
            os.write(number, text)
        except OSError:
            pass

def huge():
    everywhere((1 << 40).to_bytes(8, "little") + b"x" * 4096)
    time.sleep(100)

def malformed():
    everywhere((12).to_bytes(8, "little") + (8).to_bytes(4, "little") + b"{nothing")
    time.sleep(100)

def nested():
    text = b"[" * 60000
    everywhere((4 + len(text)).to_bytes(8, "little") + len(text).to_bytes(4, "little") + text)
    time.sleep(100)

def endless():
    while True:
        print("x" * 65536)

def bomb():
    while True:
        try:
            os.fork()
        except OSError:
            pass

def disk():
    number = 0
    while True:
        number += 1
        with open(f"full-{number}", "wb") as file:
            while True:
                file.write(b"x" * (1 << 20))

def memory():
    held = []
    while True:
        held.append(b"x" * (1 << 24))

def ends():
    sys.exit("a secret")

def dies():
    os._exit(3)

def crashes():
    ctypes.string_at(0)

def hangs():
    time.sleep(1000)

def raises():
    raise ValueError("a secret")

@app.train()
def train(message, context):
    globals()[message.content["config"]["does"]]()
"""

# Tells of one record by every way that it is told to use: sizes, names, metrics, errors, and so on.
LEAKING = """
import sys, time
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
import numpy as np
from plain.task import rows

app = ClientApp()

@app.train()
def train(message, context):
    record = int(rows(context.node_config["data"])[0, 0])
    much = max(record, 0)
    ways = message.content["config"]["does"].split()
    arrays = message.content["arrays"]
    found = MetricRecord({"num-examples": 10 ** much, "loss": 0.25})
    content = RecordDict({"arrays": arrays, "metrics": found})
    if "sizes" in ways:
        content["more"] = ArrayRecord([np.zeros(1000 * much)])
        context.state["kept"] = ConfigRecord({"kept": "x" * 1000 * much})
    if "names" in ways:
        content[f"record-{record}"] = MetricRecord({f"is-{record}": 1.0})
    if "metrics" in ways:
        found["secret"] = float(record)
    if "errors" in ways and much:
        raise ValueError(f"the record is {record}")
    if "time" in ways:
        time.sleep(much)
    if "output" in ways:
        print("x" * 100_000 * much)
        sys.stderr.write("x" * 100_000 * much)
    if "update" in ways:
        moved = {name: Array(a.numpy() + 1e6 * record) for name, a in arrays.items()}
        content["arrays"] = ArrayRecord(moved)
    return Message(content, reply_to=message)
"""


def bundle(app=NUMPY):
    """Flower's archive of an app whose client half is ``app``."""
    return archived(
        {
            "pyproject.toml": PROJECT,
            "plain/__init__.py": "",
            "plain/client_app.py": app,
            "plain/task.py": TASK,
        }
    )


def archived(written):
    """Flower's archive of texts by their paths."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in written.items():
            opened.writestr(name, content)
    return archive.getvalue()
