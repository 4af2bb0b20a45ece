"""Five of Flower's example apps, rebuilt in their shape: small, and with data that need no network.

Each is its files by their paths, and knows nothing of Murmur. ``examples/plain_flower_app`` is the
sixth, Flower's quickstart-pytorch. ``protected`` is the three lines of docs/any-flower-app.md.
"""

import re

PROJECT = """
[project]
name = "NAME"
version = "1.0.0"

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "NAME.server_app:app"
clientapp = "NAME.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 2
fraction-train = 1.0
fraction-evaluate = 0.5
local-epochs = 3
learning-rate = 0.3
"""

# Handwritten digits of scikit-learn: the last 297 for the server, the others for clients.
DIGITS = """
import numpy as np
from sklearn.datasets import load_digits

def digits():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16).astype(np.float32), labels[order]

def load_data(partition_id, num_partitions):
    images, labels = digits()
    own = slice(partition_id, 1500, num_partitions)
    return images[own], labels[own]

def load_test_data():
    images, labels = digits()
    return images[1500:], labels[1500:]
"""

SERVER = """
import numpy as np
from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from NAME.task import global_evaluate, initial_arrays

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=config["fraction-evaluate"])
    result = strategy.start(
        grid=grid,
        initial_arrays=initial_arrays(),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    np.savez("final_model.npz", *result.arrays.to_numpy_ndarrays())
"""

# quickstart-sklearn ------------------------------------------------------------------------------

SKLEARN_TASK = """
from flwr.app import ArrayRecord, MetricRecord
from sklearn.linear_model import LogisticRegression

def get_model(local_epochs=1):
    model = LogisticRegression(max_iter=local_epochs, solver="saga", random_state=0)
    model.warm_start = True
    model.classes_ = np.arange(10)
    model.coef_ = np.zeros((10, 64), np.float32)
    model.intercept_ = np.zeros(10, np.float32)
    return model

def get_model_params(model):
    return [model.coef_, model.intercept_]

def set_model_params(model, params):
    model.coef_, model.intercept_ = params
    return model

def initial_arrays():
    return ArrayRecord(get_model_params(get_model()))

def global_evaluate(server_round, arrays):
    model = set_model_params(get_model(), arrays.to_numpy_ndarrays())
    return MetricRecord({"accuracy": float(model.score(*load_test_data()))})
"""

SKLEARN_CLIENT = """
import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from NAME.task import get_model, get_model_params, load_data, set_model_params

app = ClientApp()

def own_data(context):
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"])

@app.train()
def train(msg: Message, context: Context):
    model = get_model(context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    images, labels = own_data(context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(images, labels)
    loss = log_loss(labels, model.predict_proba(images), labels=range(10))
    metrics = MetricRecord({"num-examples": len(images), "train_logloss": loss})
    arrays = ArrayRecord(get_model_params(model))
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)

@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = set_model_params(get_model(), msg.content["arrays"].to_numpy_ndarrays())
    images, labels = own_data(context)
    metrics = MetricRecord({"num-examples": len(images), "accuracy": model.score(images, labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
"""

# quickstart-jax: a list of arrays without names --------------------------------------------------

JAX_TASK = """
import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from sklearn.datasets import make_regression

def all_data():
    features, targets = make_regression(n_samples=120, n_features=3, random_state=42)
    return jnp.array(features), jnp.array(targets / 100)

def load_data(partition_id, num_partitions):
    features, targets = all_data()
    return features[partition_id::num_partitions], targets[partition_id::num_partitions]

def load_model():
    return {"b": jnp.zeros(()), "w": jnp.zeros(3)}

def loss_fn(params, features, targets):
    return jnp.mean((jnp.dot(features, params["w"]) + params["b"] - targets) ** 2)

def train(params, features, targets, steps, lr):
    grad_fn = jax.value_and_grad(loss_fn)
    for _ in range(steps):
        loss, grads = grad_fn(params, features, targets)
        params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
    return params, float(loss)

def get_params(params):
    return [np.array(value) for value in params.values()]

def set_params(params, given):
    return dict(zip(params, map(jnp.array, given), strict=True))

def initial_arrays():
    return ArrayRecord(get_params(load_model()))

def global_evaluate(server_round, arrays):
    params = set_params(load_model(), arrays.to_numpy_ndarrays())
    return MetricRecord({"loss": float(loss_fn(params, *all_data()))})
"""

JAX_CLIENT = """
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from NAME.task import get_params, load_data, load_model, loss_fn, set_params
from NAME.task import train as train_fn

app = ClientApp()

def own_data(context):
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"])

@app.train()
def train(msg: Message, context: Context):
    params = set_params(load_model(), msg.content["arrays"].to_numpy_ndarrays())
    features, targets = own_data(context)
    steps = 5 * context.run_config["local-epochs"]
    params, loss = train_fn(params, features, targets, steps, msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(features)})
    content = RecordDict({"arrays": ArrayRecord(get_params(params)), "metrics": metrics})
    return Message(content, reply_to=msg)

@app.evaluate()
def evaluate(msg: Message, context: Context):
    params = set_params(load_model(), msg.content["arrays"].to_numpy_ndarrays())
    features, targets = own_data(context)
    loss = float(loss_fn(params, features, targets))
    metrics = MetricRecord({"test_loss": loss, "num-examples": len(features)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
"""

# PyTorch, for the three that follow --------------------------------------------------------------

TORCH_TASK = """
import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1 = nn.Linear(64, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, images):
        return self.fc2(torch.relu(self.fc1(images)))

def loader_of(images, labels):
    data = TensorDataset(torch.tensor(images), torch.tensor(labels))
    return DataLoader(data, batch_size=50)

def train(net, loader, epochs, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
    return loss.item()

def test(net, loader):
    with torch.no_grad():
        right = sum((net(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)

def initial_arrays():
    return ArrayRecord(Net().state_dict())

def global_evaluate(server_round, arrays):
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": test(net, loader_of(*load_test_data()))})
"""

TORCH_CLIENT = """
HEAD
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from NAME.task import Net, load_data, loader_of
from NAME.task import test as test_fn
from NAME.task import train as train_fn

APP

def own_data(context):
    place, count = context.node_config["partition-id"], context.node_config["num-partitions"]
    return loader_of(*load_data(place, count))

@app.train()
def train(msg: Message, context: Context):
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = own_data(context)
    epochs, lr = context.run_config["local-epochs"], msg.content["config"]["lr"]
    TRAIN
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=msg)

@app.evaluate()
def evaluate(msg: Message, context: Context):
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = own_data(context)
    metrics = {"eval_acc": test_fn(net, loader), "num-examples": len(loader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
"""

# advanced-pytorch: a strategy of its own, and a head that stays on its client ---------------------

ADVANCED_TRAIN = """load_layer_weights_from_state(context.state, net)
    loss = train_fn(net, loader, epochs, lr)
    save_layer_weights_to_state(context.state, net)"""

ADVANCED_APP = """app = ClientApp()

def save_layer_weights_to_state(state, net):
    state["classification-head"] = ArrayRecord(net.fc2.state_dict())

def load_layer_weights_from_state(state, net):
    if "classification-head" in state.array_records:
        net.fc2.load_state_dict(state["classification-head"].to_torch_state_dict())
"""

ADVANCED_STRATEGY = """
import json

from flwr.serverapp.strategy import FedAvg, Result

class CustomFedAvg(FedAvg):
    def set_save_path(self, path):
        self.save_path = path
        self.best_acc_so_far = 0.0

    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 2 == 0:
            config["lr"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def _update_best_acc(self, current_round, accuracy):
        if accuracy > self.best_acc_so_far:
            self.best_acc_so_far = accuracy
            with open(self.save_path, "w") as file:
                json.dump({"round": current_round, "accuracy": accuracy}, file)

    def start(
        self, grid, initial_arrays, num_rounds=3, timeout=3600, train_config=None, evaluate_fn=None
    ):
        result = Result()
        arrays = initial_arrays
        for current_round in range(1, num_rounds + 1):
            messages = self.configure_train(current_round, arrays, train_config, grid)
            replies = grid.send_and_receive(messages=messages, timeout=timeout)
            aggregated, metrics = self.aggregate_train(current_round, replies)
            if aggregated is not None:
                result.arrays = arrays = aggregated
            if metrics is not None:
                result.train_metrics_clientapp[current_round] = metrics
            found = evaluate_fn(current_round, arrays)
            result.evaluate_metrics_serverapp[current_round] = found
            self._update_best_acc(current_round, found["accuracy"])
        return result
"""

ADVANCED_SERVER = SERVER.replace(
    "from flwr.serverapp.strategy import FedAvg\n\n",
    "\nfrom NAME.strategy import CustomFedAvg\n",
).replace(
    'FedAvg(fraction_evaluate=config["fraction-evaluate"])\n',
    'CustomFedAvg(fraction_train=config["fraction-train"])\n'
    '    strategy.set_save_path("best.json")\n',
)

# opacus: noise of the app's own ------------------------------------------------------------------

OPACUS_TRAIN = """optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    private, optimizer, own_loader = PrivacyEngine().make_private(
        module=net,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=0.3,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        for images, labels in own_loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(private(images), labels)
            loss.backward()
            optimizer.step()
    loss = loss.item()"""

# custom-mods: what goes around the client's function ---------------------------------------------

MODS_APP = """def get_log_mod(folder):
    def log_mod(msg, context, call_next):
        began = time.time()
        reply = call_next(msg, context)
        seconds = time.time() - began
        if msg.metadata.message_type == "train" and reply.has_content():
            loss = reply.content["metrics"]["train_loss"]
            number = msg.content["config"]["server-round"]
            line = {"round": number, "seconds": seconds, "train_loss": loss}
            place = Path(folder) / str(context.run_id)
            place.mkdir(parents=True, exist_ok=True)
            with open(place / f"{context.node_id}.jsonl", "a") as file:
                file.write(json.dumps(line) + chr(10))
        return reply
    return log_mod

app = ClientApp(mods=[get_log_mod("logs")])
"""


def _app(name, task, client, server=SERVER, **more):
    """The files of an app by their paths."""
    files = {"task": task, "client_app": client, "server_app": server, "__init__": "", **more}
    written = {f"{name}/{module}.py": text for module, text in files.items()}
    written["pyproject.toml"] = PROJECT
    return {path: text.replace("NAME", name) for path, text in written.items()}


def _torch(head="", app="app = ClientApp()", train="loss = train_fn(net, loader, epochs, lr)"):
    return TORCH_CLIENT.replace("HEAD", head).replace("APP", app).replace("TRAIN", train)


SKLEARN = _app("sklearn_example", DIGITS + SKLEARN_TASK, SKLEARN_CLIENT)
JAX = _app("jax_example", JAX_TASK, JAX_CLIENT)
ADVANCED = _app(
    "advanced_example",
    DIGITS + TORCH_TASK,
    _torch(app=ADVANCED_APP, train=ADVANCED_TRAIN),
    ADVANCED_SERVER,
    strategy=ADVANCED_STRATEGY,
)
OPACUS = _app(
    "opacus_example",
    DIGITS + TORCH_TASK,
    _torch("import torch\nfrom opacus import PrivacyEngine", train=OPACUS_TRAIN),
)
MODS = _app(
    "mods_example",
    DIGITS + TORCH_TASK,
    _torch("import json\nimport time\nfrom pathlib import Path", MODS_APP),
)
EXAMPLES = {
    "sklearn": SKLEARN,
    "jax": JAX,
    "advanced PyTorch": ADVANCED,
    "opacus": OPACUS,
    "custom mods": MODS,
}


def protected(files, terms="epsilon=8, delta=1e-5, clip=1.0"):
    """The same app with the three lines."""
    changed = {}
    for path, text in files.items():
        if path.endswith("client_app.py"):
            text = text.replace(
                "from flwr.clientapp import ClientApp", "from murmur.flower import ClientApp"
            )
        if path.endswith("server_app.py"):
            text = re.sub(r"strategy = (\w+\(.*\))\n", rf"strategy = private(\1, {terms})\n", text)
            text = text.replace("\napp =", "\nfrom murmur.flower import private\n\napp =", 1)
        changed[path] = text
    return changed
