"""Attacks that a reader understands, without noise and with it, on digits. Prints a table.

``python -m research.attacks.attacks [membership labels reconstruction linking] [--picture FILE]``

* ``membership``: was an image in a model's training data? A threshold on its loss, and LiRA.
* ``labels``: what class do a client's images have? Its PrivateKT labels, over the rounds of a run.
* ``reconstruction``: what is the image that one client trained on? Its NbAFL upload.
* ``linking``: which messages are the same client's? Its DPFL-BNN bits, from round to round.

The last three read a client's messages as the code releases them: runs in which every client has
a node of its own, and so each reply is one client's. ``research.attacks.methods`` has the
mathematics.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray

from benchmarks.pictures import save
from fl_app.client_app import app as client_app
from fl_app.config.compose import compose
from fl_app.engines.inline import serve
from fl_app.run.hosts import SimulatedHost, build_trainer
from fl_app.run.population import population
from fl_app.run.progress import format_epsilon
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.learning.data.examples import LocalData
from murmur.learning.training.dpsgd import SENSITIVITY, DpSgd
from murmur.learning.training.trainer import Trainer
from murmur.privacy.audit import Success, success
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from murmur.privacy.noise import NoiseGenerator
from murmur.round.question import Question
from murmur.round.site import SimulatedSite
from murmur.round.summation import PlainSummation
from murmur_report.audit import first_task
from research.attacks.methods.labels import best_guess
from research.attacks.methods.linking import alike
from research.attacks.methods.membership import confidence, likelihood_ratio
from research.attacks.methods.reconstruction import image_of_change, likeness

Row = tuple[str, str, str, str]  # what is attacked, its protection, the success, by chance
HEAD = ("attack", "protection", "success", "by chance")
DELTA, IMAGES, MODELS = 1e-5, 400, 17


# Membership ---------------------------------------------------------------------------------


def membership() -> Iterator[Row]:
    """Which half of 400 images a model was trained on: 17 models in turn, the others shadows."""
    config = compose(["dataset=digits", "model=mlp", "model.hidden=[64]"])
    data = population(config).dataset
    trainer, rng = build_trainer(config, data), np.random.default_rng(1)
    chosen = rng.choice(len(data.train.labels), IMAGES, replace=False)
    images, labels = data.train.images[chosen], data.train.labels[chosen].astype(np.int64)
    # Each image is in as many models as not, about.
    inside = rng.random((MODELS, IMAGES)).argsort(axis=0) < MODELS // 2
    for epsilon in (np.inf, 8.0, 2.0):
        scores, accuracies = [], []
        for number in range(MODELS):
            _train(trainer, images, labels, np.flatnonzero(inside[number]), epsilon, number)
            scores.append(confidence(_losses(trainer, images, labels)))
            accuracies.append(trainer.evaluate(data.test.images, data.test.labels).accuracy)
        found = _in_turn(np.array(scores), inside)
        model = f"{_epsilon(epsilon)}; accuracy {np.mean(accuracies):.2f}"
        for name, one in zip(("loss threshold", "LiRA, 16 shadows"), found, strict=True):
            yield f"membership, {name}", model, _roc(one), _roc(Success(0.5, 1e-3))


def _train(
    trainer: Trainer,
    images: NDArray,
    labels: NDArray,
    indices: NDArray,
    epsilon: float,
    number: int,
) -> None:
    rng = np.random.default_rng([2, number])
    trainer.load(trainer.initial(rng))
    if np.isinf(epsilon):
        trainer.train(images, labels, indices=indices, rng=rng, epochs=100, batch_size=20, lr=0.3)
        return
    schedule, noise = LotSchedule(50, 30, SENSITIVITY, 1), NoiseGenerator.from_os()
    mechanism = schedule.mechanism(epsilon, DELTA, len(indices))
    DpSgd(50, 1.0, 0.5).train(
        trainer,
        images,
        labels,
        indices=indices,
        steps=schedule.steps(len(indices)),
        sample=lambda count: mechanism.sample(count, noise),
        perturb=lambda total: mechanism.perturb(total, noise),
    )


def _losses(trainer: Trainer, images: NDArray, labels: NDArray) -> NDArray[np.float64]:
    logits = trainer.logits(images).astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    sums = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
    return sums - logits[np.arange(len(labels)), labels]


def _in_turn(scores: NDArray, inside: NDArray[np.bool_]) -> tuple[Success, Success]:
    """Of the threshold and of LiRA, where each model is the target once."""
    ratios = np.array(
        [
            likelihood_ratio(own, np.delete(scores, k, axis=0), np.delete(inside, k, axis=0))
            for k, own in enumerate(scores)
        ]
    )
    return success(scores[inside], scores[~inside]), success(ratios[inside], ratios[~inside])


# Messages -----------------------------------------------------------------------------------


def labels() -> Iterator[Row]:
    """Ten rounds of two labels; each client's images are of one class, which the server guesses."""
    words = ["strategy.K=2", "partition=shards", "partition.classes_per_client=1"]
    words += ["federation.num_rounds=10"]
    for privacy in ("privacy=none", "privacy.epsilon=5", "privacy.epsilon=0.5"):
        experiment, told = overheard([*words, privacy])
        strategy: Any = experiment.strategy
        answers = np.concatenate([told[n].reshape(-1, 2, 10).argmax(axis=2) for n in told], axis=1)
        keep = getattr(strategy.answers, "keep", 1.0)
        data = population(experiment.config)
        shards = [data.dataset.train.labels[rows] for rows in data.shards]
        truth = np.array([np.bincount(shard).argmax() for shard in shards])
        right = np.mean(best_guess(answers, keep, np.full(10, 0.1)) == truth)
        yield (
            f"class of a client's images, by its labels in {len(told)} rounds",
            _statement(experiment),
            f"{right:.2f} right",
            "0.10",
        )


def linking() -> Iterator[Row]:
    """Whose bits of round 3 are those of round 2."""
    words = ["experiment=digits_dpfl_bnn", "privacy.epsilon=inf"]
    words += ["privacy.threat=local", "privacy.secure_aggregation=off", "strategy.debias=false"]
    words += ["federation.num_rounds=3"]
    settings = ["strategy.noise=false strategy.gamma=0.4"]
    settings += [f"strategy.gamma={gamma}" for gamma in (0.4, 0.1, 0.01, 0.001)]
    for setting in settings:
        experiment, told = overheard([*words, *setting.split()])
        found = success(*alike(told[2], told[3]))
        gamma = "" if "noise=false" in setting else f"{setting.removeprefix('strategy.')}: "
        yield (
            "a client known again in the next round, by its bits",
            f"{gamma}{_statement(experiment)}",
            _roc(found),
            _roc(Success(0.5, 1e-3)),
        )


def overheard(words: list[str]) -> tuple[ValidatedRun, dict[int, NDArray[np.int64]]]:
    """A run, and what the server reads in each round: (clients, ...), in their order."""
    told: dict[int, dict[int, NDArray]] = {}
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        words = [*words, "engine=inline", "keep_checkpoints=false", f"run_dir={folder.path}"]
        experiment = ValidatedRun.of(words)
        clients = int(experiment.config.federation.num_clients)

        def answer(message: Message, context: Context) -> Message:
            reply = client_app(message, context)
            asked: Any = message.content.config_records["task"]
            if message.metadata.message_type == "train":
                [client] = asked["clients"]
                strategy = experiment.strategy
                question = Question(
                    purpose="train",
                    number=asked["round"],
                    cohort=[client],
                    model=strategy.setup.initial_parameters(),
                    codec=strategy.codec(),
                    event=strategy.release_event,
                    weights=strategy.weights(),
                )
                summed = PlainSummation(strategy.rounds.sums, question)
                summed.accept([client], reply.content)
                told.setdefault(asked["round"], {})[client] = summed.added.total
            return reply

        serve(experiment, clients, 1, answer)
    return experiment, {
        number: np.array([seen[client] for client in sorted(seen)]) for number, seen in told.items()
    }


def reconstruction(picture: Path | None = None) -> Iterator[Row]:
    """Which of all training images one client took one step on."""
    words = ["strategy=nbafl", "dataset=digits", "model=mlp", "model.hidden=[64]"]
    words += ["privacy.sensitivity=worst", "federation.num_rounds=1", "strategy.clip=100"]
    words += ["strategy.local.epochs=1", "partition=iid", "federation.num_clients=20"]
    drawn: dict[str, NDArray] = {}
    for privacy in ("privacy.epsilon=inf", "privacy.epsilon=8"):
        experiment = ValidatedRun(compose([*words, privacy]))
        with tempfile.TemporaryDirectory() as scratch:
            node = SimulatedHost(experiment.config, SimulatedSite.of(Path(scratch)))
            task = first_task(experiment.strategy)
            own = node.data.of(task.client)
            codec: Any = node.client.codec(task)
            noise = NoiseGenerator.from_os()
            found = []
            for index in own.indices[:20]:
                alone = LocalData(own.images, own.labels, np.array([index]))
                release = codec.pack(node.client.answer(task, alone, noise))
                sent = codec.mean(codec.expand(release, 1), 1).astype(np.float32)
                found.append(image_of_change(*_first_layer(node.trainer, sent, task.model)))
        images = np.array(found)
        every = node.population.dataset.train.images
        places = np.argmax(likeness(images, every), axis=1)
        drawn["the image"] = own.images[own.indices[:20]]
        drawn[_statement(experiment)] = images
        yield (
            "the image that a client trained on, by its upload",
            _statement(experiment),
            f"{np.mean(places == own.indices[:20]):.2f} found among {len(every):,}",
            f"{1 / len(every):.3f}",
        )
    if picture is not None:
        _draw(drawn, picture)


def _first_layer(trainer: Trainer, after: NDArray, before: NDArray) -> tuple[NDArray, NDArray]:
    """What a linear first layer's weights and biases changed by."""
    trainer.load(after)
    now = [values.numpy().copy() for values in trainer.flat.state_dict().values()]
    trainer.load(before)
    then = [values.numpy().copy() for values in trainer.flat.state_dict().values()]
    return now[0] - then[0], now[1] - then[1]


def _draw(drawn: dict[str, NDArray], picture: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(drawn), 8, figsize=(8, 1.15 * len(drawn)))
    for row, (name, images) in zip(axes, drawn.items(), strict=True):
        row[0].set_title(name, fontsize=8, loc="left")
        for one, image in zip(row, images, strict=False):
            one.imshow(image.reshape(8, 8), cmap="gray_r")
            one.set_axis_off()
    figure.tight_layout()
    save(figure, picture)


def _statement(experiment: ValidatedRun) -> str:
    """Claimed and proven ε of the whole run against a server that reads messages."""
    strategy = experiment.strategy
    strategy.rounds.participations.clear()
    for number in range(1, strategy.setup.budget.rounds + 1):
        strategy.rounds.participations.update(map(int, strategy.rounds.cohort(number)))
    [said] = [g for g in strategy.rounds.statement().guarantees if g.threat == "local"]
    if np.isinf(said.proven_total):
        return "none"
    claimed = (
        "" if said.claimed_total is None else f"{format_epsilon(said.claimed_total)} claimed, "
    )
    return f"ε {claimed}{format_epsilon(said.proven_total)} proven"


def _epsilon(epsilon: float) -> str:
    return "none" if np.isinf(epsilon) else f"DP-SGD, ε {epsilon:g} proven"


def _roc(found: Success) -> str:
    return f"AUC {found.auc:.3f}, TPR {found.hits:.3f} at FPR 0.001"


ATTACKS: dict[str, Callable[..., Iterator[Row]]] = {
    "membership": membership,
    "labels": labels,
    "reconstruction": reconstruction,
    "linking": linking,
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS), help=", ".join(ATTACKS))
    parser.add_argument("--picture", type=Path, help="where to draw the reconstructed images")
    given = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for name in given.attacks:
        options = {"picture": given.picture} if name == "reconstruction" else {}
        for row in ATTACKS[name](**options):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
