"""The model that a finished run sends to its devices: what is kept, what is refused, what it tells.

Every refusal is answered with the same bytes as an acceptance, and charges nothing.
"""

import csv
import gc
import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors import safe_open
from safetensors.numpy import load_file, save

import fl_app.run.hosts
from fl_app.cli import main
from fl_app.client_app import app
from fl_app.config.overrides import to_run_config
from fl_app.device import received
from fl_app.engines.deploy import device_overrides
from fl_app.run import offer
from fl_app.run.model_folder import KEY, SavedModel
from fl_app.run.results import RunFolder
from fl_app.tools.export import export
from murmur.learning.data.datasets import digits
from murmur.privacy.run_header import RunHeader, ServerKey
from murmur.random import experiment_rng
from murmur.round.signed import QuestionSigner
from tests.federation.loopback import POLICY
from tests.fl_app.device.test_devices import run_devices
from tests.node_keys import openssh

WORDS = [
    *("strategy=fedavg", "model=linear", "federation.num_clients=3", "federation.num_rounds=2"),
    *("federation.quorum=1.0", "federation.round_timeout=5", "federation.public=400"),
    *("privacy.noise=seeded", "strategy.local.epochs=1"),
]
SIZES = "federation.devices.sizes=[346,346,345]"
NOISE = "{discrete_gaussian: {min_noise_multiplier: 0.001}}"
ANY = POLICY.replace("[privatekt, fedavg]", "[fedavg, fedper]") + "model: any\n"
ANY = ANY.replace("{randomized_response: {max_epsilon: 3.0}}", NOISE)
LEDGER = ("ledger.sqlite", "ledger.sqlite.key", "ledger.sqlite.head")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What a simulation of WORDS gives its clients, and the policy of an owner who takes any."""
    folder = tmp_path_factory.mktemp("files")
    export(folder, WORDS, shards=True)
    (folder / "policy.yaml").write_text(ANY)
    table = "".join(f"{client} {openssh(client)}\n" for client in range(3))
    (folder / "enrolled.txt").write_text(table)
    return folder


@dataclass
class Past:
    """A run on devices that is over; ``offer`` sends to the first of them what a server likes."""

    files: Path
    folder: Path
    words: list[str]

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "run")

    @property
    def state(self) -> Path:
        return self.folder / "state-0"

    @property
    def sent(self) -> dict[str, bytes]:
        model = self.run.path / "model"
        paths = [model / name for name in offer.FILES]
        return {path.name: path.read_bytes() for path in paths if path.exists()}

    def config(self, policy: str = "") -> dict:
        path = self.files / "policy.yaml"
        if policy:
            path = self.folder / "own.yaml"
            path.write_text(policy)
        return {
            **{"shape": "1,8,8", "classes": 10, "sizes": "346,346,345", "clients": 0},
            **{"data": f"{self.files}/client-{{client}}.npz", "policy": str(path)},
            **{"public": f"{self.files}/public.npz", "state": str(self.state)},
        }

    def offer(self, content: RecordDict, policy: str = "", run: str = "run") -> bytes:
        """The reply's bytes to an offer with this content."""
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        message = Message(content, dst_node_id=1, message_type="query", group_id="offer")
        message.metadata.__dict__["_message_id"] = "m1"
        typed = [*self.words, f"run_dir={self.folder}/{run}"]
        run_config = to_run_config([*typed, *device_overrides(typed)])
        context = Context(1, 1, self.config(policy), RecordDict(), run_config)
        reply = app(message, context)
        assert not reply.has_error()
        return reply.content.deflate()

    def kept(self) -> dict[str, bytes]:
        """The state's files by name, without what is written of refusals."""
        found = sorted(path for path in self.state.rglob("*") if path.is_file())
        names = {str(path.relative_to(self.state)): path for path in found}
        return {
            n: p.read_bytes() for n, p in names.items() if n not in ("errors.log", "metrics.prom")
        }


def past(files, folder, *more, **changed):
    words = ["engine=deploy", "engine.superlink=none", f"federation.enrolled={files}/enrolled.txt"]
    words += [*WORDS, SIZES, *more]
    run_devices(files, folder, SIZES, *more, usual=WORDS, **changed)
    fl_app.run.hosts._local.__dict__.clear()  # as a device's process ends: its ledger is closed
    gc.collect()
    return Past(files, folder, words)


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A run that has offered its model to its three devices, which have kept it."""
    return past(files, tmp_path_factory.mktemp("past"), "federation.offer_model=any")


def predicted(words, capsys):
    assert main(["predict", *map(str, words)]) == 0
    said = capsys.readouterr()
    rows = list(csv.reader(said.out.splitlines()))
    return np.array([row[2:] for row in rows[1:]], float), said.err


def test_a_device_predicts_as_the_run_did(finished, tmp_path, capsys):
    np.savez(tmp_path / "test.npz", images=digits().test.images[:50])
    own, told = predicted(["--device", finished.state, tmp_path / "test.npz"], capsys)
    runs, _ = predicted([finished.run.path, tmp_path / "test.npz"], capsys)
    assert np.abs(own - runs).max() < 1e-5
    assert "run run, received 20" in told and "by its server's word no finite" in told
    program = [sys.executable, "-m", "fl_app", "predict", "--device", str(finished.state)]
    elsewhere = subprocess.run(
        [*program, str(tmp_path / "test.npz")], capture_output=True, text=True, cwd=tmp_path
    )
    rows = list(csv.reader(elsewhere.stdout.splitlines()))[1:]
    assert np.abs(np.array([row[2:] for row in rows], float) - runs).max() < 1e-5


def test_what_is_kept_is_its_owners_only(finished):
    for path in (finished.state / received.FOLDER).rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_without_a_model_the_command_says_so(tmp_path, capsys):
    assert main(["predict", "--device", str(tmp_path), "x.png"]) == 2
    assert "has received no model" in capsys.readouterr().err


def changed(past, tensors=None, **about):
    """The offered files with other tensors, or another description."""
    path = past.run.path / "model" / offer.WEIGHTS
    with safe_open(path, "np") as file:
        told = json.loads(file.metadata()[KEY])
    metadata = {KEY: json.dumps({**told, **about})}
    return {offer.WEIGHTS: save(tensors or load_file(path), metadata)}


def nan(past):
    tensors = {n: v.copy() for n, v in load_file(past.run.path / "model" / offer.WEIGHTS).items()}
    next(iter(tensors.values())).flat[0] = np.nan
    return changed(past, tensors)


def deep(past):
    path = past.run.path / "model" / offer.WEIGHTS
    return {offer.WEIGHTS: save(load_file(path), {KEY: "[" * 100_000 + "]" * 100_000})}


def with_input(past, **more):
    with safe_open(past.run.path / "model" / offer.WEIGHTS, "np") as file:
        told = json.loads(file.metadata()[KEY])["input"]
    return changed(past, input={**told, **more})


PACKAGE = {"name": "os", "sha256": None}
HOSTILE = {
    "truncated": (lambda p: {n: c[:-100] for n, c in p.sent.items()}, "no safetensors file"),
    "a header of a gigabyte": (
        lambda p: {offer.WEIGHTS: (2**30).to_bytes(8, "little") + b"{}"},
        "its header has 1073741824 bytes",
    ),
    "pickled": (lambda p: {offer.WEIGHTS: pickle.dumps({"a": 1})}, "its header has"),
    "nothing": (lambda p: {}, "must hold"),
    "a path": (lambda p: {**p.sent, "../x": b"x"}, "must hold"),
    "a card": (lambda p: {**p.sent, "README.md": b"# x"}, "must hold"),
    "not a number": (nan, "not finite"),
    "an unknown class": (lambda p: changed(p, model={"_target_": "os.system"}), "model: is not"),
    "another class of ours": (
        lambda p: changed(p, model={"_target_": "murmur.learning.models.cnn_small"}),
        "model: is not",
    ),
    "an own class": (lambda p: changed(p, own_classes=[{"target": "a.B"}]), "own_classes: is not"),
    "another task": (
        lambda p: changed(p, task={"kind": "regression", "low": 0.0, "high": 1.0}),
        "task: is not that of the run",
    ),
    "features": (
        lambda p: changed(p, features={"_target_": "murmur.learning.features.encoder.encoder"}),
        "features: is not",
    ),
    "a deep description": (deep, "RecursionError"),
    "a huge input": (lambda p: changed(p, input_shape=[1, 1000, 1000]), "input_shape: is not"),
    "other data": (lambda p: with_input(p, shape=[1, 28, 28]), "input: must be of the form"),
    "a package": (lambda p: with_input(p, tokenizer=PACKAGE), "input.tokenizer=os"),
    "a file elsewhere": (
        lambda p: with_input(p, tokenizer={"name": "../../x", "sha256": "0" * 64}),
        "input.tokenizer=../../x",
    ),
    "no statement": (lambda p: changed(p, privacy={"guarantees": "all"}), "privacy statement"),
    "other weights": (
        lambda p: changed(p, {"weight": np.zeros((3, 3), np.float32)}),
        "weights are not those",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_offer_is_answered_alike_and_keeps_the_model_before(finished, name):
    made, reason = HOSTILE[name]
    before = finished.kept()
    policy = finished.config()["policy"]
    answer = finished.offer(offer.content_of(made(finished)), Path(policy).read_text())
    assert answer == offer.answer().deflate()
    assert finished.kept() == before
    assert reason in (finished.state / "errors.log").read_text()


REFUSING = {
    "the owner wants none": (ANY.replace("model: any", "model: refuse"), "no model to be kept"),
    "by default without a finite epsilon": (ANY.replace("model: any\n", ""), "without a finite ε"),
    "by its size": (ANY + "model_mib: 1\n", "model_mib"),
    "the policy allows other ledgers": (ANY + f"ledger: {'0' * 32}\n", "LedgerError"),
}


@pytest.mark.parametrize("name", REFUSING)
def test_an_owner_who_refuses_answers_alike(finished, name):
    policy, reason = REFUSING[name]
    files = finished.sent
    if "size" in name:
        files = changed(finished, {"weight": np.zeros((2**20, 2), np.float32)})
    before = finished.kept()
    assert finished.offer(offer.content_of(files), policy) == offer.answer().deflate()
    assert finished.kept() == before
    assert reason in (finished.state / "errors.log").read_text()


def test_a_run_that_the_device_took_no_part_in_is_refused(finished):
    before = finished.kept()
    content = offer.content_of(finished.sent)
    assert finished.offer(content, run="other") == offer.answer().deflate()
    assert finished.kept() == before
    assert "has not taken part" in (finished.state / "errors.log").read_text()


def test_a_full_disk_is_answered_alike_and_keeps_the_model_before(finished, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = finished.kept()
    files = changed(finished, {n: v + 1 for n, v in load_file(weights_of(finished)).items()})
    monkeypatch.setattr(received, "replace_file", full)
    assert finished.offer(offer.content_of(files)) == offer.answer().deflate()
    assert finished.kept() == before


def weights_of(past):
    return past.run.path / "model" / offer.WEIGHTS


def test_an_offer_with_further_records_is_refused(finished):
    content = offer.content_of(finished.sent)
    content["more"] = ConfigRecord({"a": 1})
    assert finished.offer(content) == offer.answer().deflate()
    text = Array(np.zeros(3))
    content = RecordDict({offer.RECORD: ArrayRecord({offer.WEIGHTS: text})})
    assert finished.offer(content) == offer.answer().deflate()
    assert "must be bytes" in (finished.state / "errors.log").read_text()


def test_many_offers_charge_nothing_and_leave_one_model(finished):
    ledger = {name: finished.kept()[name] for name in LEDGER if name in finished.kept()}
    assert "ledger.sqlite" in ledger
    tensors = load_file(weights_of(finished))
    for number in range(5):
        files = changed(finished, {name: values + number for name, values in tensors.items()})
        assert finished.offer(offer.content_of(files)) == offer.answer().deflate()
        folders = [p for p in (finished.state / received.FOLDER).iterdir() if p.is_dir()]
        assert len(folders) == 1
        found, _ = received.received_model(finished.state)
        last = SavedModel.load(finished.run.path).trainer.parameters() + np.float32(number)
        assert np.array_equal(found.trainer.parameters(), last)
    assert {name: finished.kept()[name] for name in ledger} == ledger
    finished.offer(offer.content_of(finished.sent))


def test_a_model_that_is_altered_anywhere_is_refused_or_whole(finished):
    """Whatever becomes of its bytes, the answer is the same and what lies there can be used."""
    rng = experiment_rng(0, "altered offers")
    sent = finished.sent[offer.WEIGHTS]
    ledger = finished.kept()["ledger.sqlite"]
    for _ in range(40):
        altered = bytearray(sent)
        for place in rng.integers(0, len(sent), 3):
            altered[place] = rng.integers(256)
        content = offer.content_of({offer.WEIGHTS: bytes(altered)})
        assert finished.offer(content) == offer.answer().deflate()
        found, _ = received.received_model(finished.state)
        assert np.isfinite(found.trainer.parameters()).all()
    assert finished.kept()["ledger.sqlite"] == ledger
    finished.offer(offer.content_of(finished.sent))


def test_a_server_offers_without_being_told_where_epsilon_is_finite(files, tmp_path):
    """Devices that allow it have it, others have nothing; the server's run is the same."""
    words = ["privacy.noise=os", "privacy.epsilon=8", "protection=distributed"]
    words += ["privacy.threat=local"]
    open_ = past(files, tmp_path / "a", *words)
    assert (open_.state / received.FOLDER / received.CURRENT).exists()
    _, told = received.received_model(open_.state)
    assert "by its server's word ε = " in told
    silent = past(files, tmp_path / "b", *words, "federation.offer_model=never")
    assert not (silent.state / received.FOLDER).exists()
    void = past(files, tmp_path / "c")
    assert not (void.state / received.FOLDER).exists()


def test_where_the_owner_names_servers_one_of_them_has_signed_the_offer(files, tmp_path):
    key, stranger = ServerKey.generate(), ServerKey.generate()
    key.save(tmp_path / "server.key")
    more = ["federation.offer_model=any", f"federation.server_key={tmp_path}/server.key"]
    policy = ANY.replace("servers: any", f"servers: [{key.public_key}]")
    (tmp_path / "pinned.yaml").write_text(policy)
    run = past(files, tmp_path, *more, policy=str(tmp_path / "pinned.yaml"))
    assert (run.state / received.FOLDER / received.CURRENT).exists()
    before = run.kept()
    assert run.offer(offer.content_of(run.sent), policy) == offer.answer().deflate()
    header = RunHeader.read((run.run.path / "header.json").read_bytes())
    signer = QuestionSigner(stranger, replace(header, server=stranger.public_key))
    content = offer.signed_content(run.run.path / "model", signer, [0], 2)
    assert run.offer(content, policy) == offer.answer().deflate()
    content = offer.signed_content(run.run.path / "model", QuestionSigner(key, header), [0], 2)
    content[offer.RECORD] = offer.content_of({offer.WEIGHTS: b"other"})[offer.RECORD]
    assert run.offer(content, policy) == offer.answer().deflate()
    assert run.kept() == before
    log = (run.state / "errors.log").read_text()
    assert log.count("the model that it offers") == 3 and log.count("signature") >= 2


def test_fedper_predicts_with_the_layers_that_the_device_has_kept(files, tmp_path, capsys):
    more = ["strategy=fedper", "model=mlp", "model.hidden=[16]", "federation.offer_model=any"]
    own = past(files, tmp_path, *more)
    np.savez(tmp_path / "test.npz", images=digits().test.images[:50])
    found, _ = received.received_model(own.state)
    newcomer = SavedModel.load(own.run.path)
    [kept] = own.state.glob("clients/*/0/2.safetensors")
    layers = load_file(kept)["personal"]
    wanted = newcomer.trainer.parameters()
    wanted[-len(layers) :] = layers
    assert 0 < len(layers) < len(wanted)
    assert np.array_equal(found.trainer.parameters(), wanted)
    chances, _ = predicted(["--device", own.state, tmp_path / "test.npz"], capsys)
    newcomer.trainer.load(wanted)
    assert np.abs(chances - newcomer.predictions(digits().test.images[:50])).max() < 1e-5
    words = ["predict", "--device", str(own.state), "--client", "7", str(tmp_path / "test.npz")]
    assert main(words) == 2
    assert "--client=7: must be a client with layers of its own here (0)" in capsys.readouterr().err
