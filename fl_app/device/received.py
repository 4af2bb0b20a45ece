"""The model that a device was sent when a run was over: checked, kept, used.

A server sets every byte of an offer (``fl_app.run.offer``), so ``receive`` keeps one only where

* the owner's policy allows models, of that many bytes, before anything is read;
* this device has taken part in the run, by its own ledger, and one of the servers that the policy
  names, if it names any, has signed the offer;
* model, features and task are those that the device has agreed to, and no class or file is named
  beside them; shapes, names and kinds of the tensors are that model's;
* all numbers are finite, and the description is plain JSON of bounded size and depth;
* its statement satisfies the policy. That statement is the server's word: a device has no other.

Nothing is unpickled, and nothing is charged: the ledger is only read. The answer is always the same
word; the device's log says what became of the offer. A later model replaces the one before, so
that a server which sends many fills no disk. A folder for each, and ``current.json``, which names
one and is replaced as a whole:

    STATE/received/current.json
    STATE/received/DIGEST/model.safetensors, features.safetensors
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from flwr.common import log
from numpy.typing import NDArray
from omegaconf import DictConfig
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fl_app.config.errors import ConfigError
from fl_app.config.instantiate import build
from fl_app.config.settings import FederationSettings
from fl_app.device.agreement import device_config, run_name
from fl_app.device.node_settings import NodeSettings
from fl_app.run import offer
from fl_app.run.hosts import build_model
from fl_app.run.model_folder import FORMAT, KEY, SavedModel, settings_of, task_of
from murmur.files import locked, owner_only_folder, replace_file
from murmur.format import format_number, printable
from murmur.learning.array_bytes import array_from_bytes
from murmur.privacy.ledger import Ledger
from murmur.privacy.policy import Policy
from murmur.privacy.statement import Statement
from murmur.round.client_state import ClientState, ClientStateError
from murmur.round.signed import read_signed
from murmur.round.site import DeviceSite
from murmur.round.task import SIGNED, Task, log_error

FOLDER = "received"  # of a device's state
CURRENT = "current.json"
MAX_HEADER_BYTES = 4 * 2**20  # of a safetensors file: names, shapes and the description
MAX_DEPTH = 20  # of the description
_KINDS = ("numbers", "pictures", "table", "texts")
_LAST_ROUND = 2**31


class OfferError(ValueError):
    """An offer is not kept; the message says why, in the device's own log."""


def receive(
    content: RecordDict, run_config: Mapping[str, Any], run_id: int, site: NodeSettings
) -> RecordDict:
    """Answer an offer with the one word, after keeping its model or not.

    Args:
        content: the message's, untrusted.
        run_config: Flower's, as the server sent it.
        run_id: Flower's number of the run.
        site: of this device, whose policy holds now.
    """
    try:
        run = run_name(run_config, run_id)
        _keep(content, device_config(run_config, site.owner), run, site)
        log(logging.INFO, "the model of run %s was kept", printable(run))
    except Exception as error:  # whatever a server has made up, it hears the same
        log_error(site.folder, f"run {run_id}, the model that it offers", error)
    return offer.answer()


def _keep(content: RecordDict, config: DictConfig, run: str, site: NodeSettings) -> None:
    """Check an offer and write it; OfferError, Refusal or another error says why not."""
    sent = content.array_records[offer.RECORD]
    site.policy.check_model_size(sum(len(array.data) for array in sent.values()))
    _require_took_part(content, config, run, site)
    files = _files(content, sent)
    tensors, metadata = _unpacked(files[offer.WEIGHTS])
    about = _described(metadata)
    _require_of_run(about, tensors, config)
    site.policy.check_model_privacy(Statement.from_dict(about["privacy"]).protects_model)
    written = {offer.WEIGHTS: save(tensors, {KEY: json.dumps(about)})}
    if offer.FEATURES in files:
        written[offer.FEATURES] = save(_unpacked(files[offer.FEATURES])[0])
    with locked(site.folder / FOLDER):
        _replace(site.folder / FOLDER, written, run)


def _require_took_part(
    content: RecordDict, config: DictConfig, run: str, site: NodeSettings
) -> None:
    """OfferError unless the ledger, which is only read, has a charge of ``run``.

    Refusal where the policy names servers, and none of them has signed this offer of that run.
    """
    path = site.folder / "ledger.sqlite"
    if path.exists():
        number = int(config.federation.num_rounds)
        asked = Task(number, -1, np.zeros(0, np.float32), {}, {}, offer.RECORD)
        with Ledger(path, create=False, expected=site.policy.ledger) as ledger:
            if any(entry.kind == "charge" for entry in ledger.entries(run=run)):
                digest = offer.digest_of(content)
                read_signed(content, asked, digest, run, ledger, site.policy)
                return
    raise OfferError(f"run={run:.60}: this device has not taken part in it")


def _files(content: RecordDict, sent: ArrayRecord) -> dict[str, bytes]:
    """The bytes of each file of an offer, by its name."""
    is_known = {offer.WEIGHTS} <= set(sent) <= set(offer.FILES)
    if not is_known or not set(content) <= {offer.RECORD, SIGNED}:
        raise OfferError(f"it must hold {' and perhaps '.join(offer.FILES)}, and nothing else")
    files = {}
    for name, array in sent.items():
        values = array_from_bytes(array.data)
        if values.dtype != np.uint8 or values.ndim != 1:
            raise OfferError(f"{name}: must be bytes")
        files[name] = values.tobytes()
    return files


def _unpacked(content: bytes) -> tuple[dict[str, NDArray], dict[str, str]]:
    """Tensors, all of them finite, and metadata of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise OfferError(f"its header has {length} bytes, of {MAX_HEADER_BYTES} at most")
    try:
        tensors = load(content)
    except (SafetensorError, KeyError) as error:
        raise OfferError(f"it is no safetensors file ({error})") from error
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise OfferError(f"{name:.60}: holds numbers that are not finite")
    return tensors, json.loads(content[8 : 8 + length]).get("__metadata__", {})


def _described(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The model's description."""
    about = json.loads(metadata.get(KEY, "null"))
    if not isinstance(about, dict) or _depth(about) > MAX_DEPTH:
        raise OfferError("its description is no plain mapping")
    return about


def _depth(value: Any) -> int:
    """How deep lists and mappings lie in each other; RecursionError where far too deep."""
    inner = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(inner, list):
        return 0
    return 1 + max(map(_depth, inner), default=0)


def _require_of_run(
    about: Mapping[str, Any], tensors: Mapping[str, NDArray], config: DictConfig
) -> None:
    """OfferError unless a model is the one that this device has agreed to train.

    No memory is taken by the server's word: the model is built without numbers first.
    """
    federation: FederationSettings = build(config.federation, "federation")
    terms = federation.device_data_spec()
    assert terms is not None
    agreed = {
        **settings_of(config),
        "format": FORMAT,
        "own_classes": [],
        "num_classes": terms.num_classes,
        "features_digest": terms.features,
        "task": task_of(terms.objective).get("task"),
    }
    told = {"task": None, **about}
    for key, value in agreed.items():
        if told[key] != value:
            raise OfferError(f"{key}: is not that of the run that this device has agreed to")
    _require_input(about["input"], terms.shape, config)
    classes = about["classes"]
    named = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    if classes is not None and not (named and len(classes) == terms.num_classes):
        raise OfferError(f"classes: must be {terms.num_classes} names, or null")
    if type(about["personal"]) is not bool:
        raise OfferError("personal: must be true or false")
    channels, height, width = map(_size, about["input_shape"])
    seen = terms.shape if terms.features is None else [channels, 1, 1]
    if about["input_shape"] != seen:
        raise OfferError("input_shape: is not that of this device's data or features")
    with torch.device("meta"):
        module = build_model(config.model)((channels, height, width), terms.num_classes)
    parts = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    wanted = {n: (tuple(p.shape), str(p.dtype).removeprefix("torch.")) for n, p in parts.items()}
    if wanted != {name: (values.shape, values.dtype.name) for name, values in tensors.items()}:
        raise OfferError("its weights are not those of the run's model")


def _require_input(told: Mapping[str, Any], shape: list[int] | None, config: DictConfig) -> None:
    """OfferError unless an input's form is one that this device knows, of its data's shape."""
    tokenizer = told.get("tokenizer")
    if tokenizer is not None:
        # A package would be imported: only the one that the device has agreed to.
        name = str(tokenizer["name"])
        plain = PurePosixPath(name).name == name
        if not plain or (tokenizer["sha256"] is None and name != config.features.get("encoder")):
            raise OfferError(f"input.tokenizer={name:.60}: must be a file's name and digest")
    if told["kind"] not in _KINDS or told["shape"] != shape or told["range"] not in (None, [0, 1]):
        raise OfferError("input: must be of the form of this device's data")
    for key in ("vocabulary", "length"):
        if told.get(key) is not None:
            _size(told[key])


def _size(value: object) -> int:
    """A whole number from 1 to 10⁶."""
    if type(value) is not int or not 1 <= value <= 1_000_000:
        raise OfferError(f"{value!r:.60}: must be a whole number from 1 to 1000000")
    return value


def _replace(folder: Path, files: Mapping[str, bytes], run: str) -> None:
    """Let ``files`` be the model of ``folder``: whole, readable by its owner only, or not at all.

    What cannot be used is not kept: it is read back as `murmur predict` does.
    """
    digest = hashlib.sha256(b"".join(files.values())).hexdigest()
    before = ""
    if (folder / CURRENT).exists():
        before = _current(folder.parent)["folder"]
    _remove_others(folder, before)
    place = folder / digest
    try:
        owner_only_folder(place)
        for name, content in files.items():
            replace_file(place / name, content)
        SavedModel.load(place)
        told = {"run": run, "folder": digest, "time": datetime.now(UTC).isoformat("T", "seconds")}
        replace_file(folder / CURRENT, json.dumps(told).encode())
    except BaseException:
        _remove_others(folder, before)
        raise
    _remove_others(folder, digest)


def _remove_others(folder: Path, kept: str) -> None:
    """Remove all models in ``folder`` but that in its folder ``kept``."""
    for path in folder.iterdir():
        if path.is_dir() and path.name != kept:
            shutil.rmtree(path)


def _current(state: Path) -> dict[str, str]:
    """Which model the device with this ``state`` has; ConfigError where it has none."""
    path = state / FOLDER / CURRENT
    try:
        told: dict[str, str] = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{state}: this device has received no model; name the folder of its state, in which "
            "errors.log says whether a model was refused"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    return told


def received_model(
    state: Path, client: int | None = None, files: Sequence[Path] = ()
) -> tuple[SavedModel, str]:
    """The model that a device has received, with the layers that the device has kept.

    Args:
        state: the folder of the device's state.
        client: whose layers, where clients keep some; None: of the only one.
        files: copies of what the model names, as for ``SavedModel.load``.

    Returns:
        The model, and a line on where it is from.

    Raises:
        ConfigError: there is none, it cannot be read, or a client's own layers are not here.
    """
    state = state.expanduser()
    told = _current(state)
    model = SavedModel.load(state / FOLDER / told["folder"], files)
    if model.about["personal"]:
        _add_own_layers(model, state, told["run"], client)
    return model, f"run {printable(told['run'])}, received {told['time']}; {_promise(model)}"


def _add_own_layers(model: SavedModel, state: Path, run: str, client: int | None) -> None:
    """Let a client's own last layers take the place of those that a newcomer begins with."""
    place = DeviceSite(state, run, Policy("predictions release nothing")).state_dir
    here = sorted(int(path.name) for path in place.glob("[0-9]*"))
    if client is None and len(here) == 1:
        client = here[0]
    if client not in here:
        known = ", ".join(map(str, here)) or "none"
        raise ConfigError(
            f"--client={client}: must be a client with layers of its own here ({known})"
        )
    try:
        own = (ClientState(place).load(client, _LAST_ROUND) or {}).get("personal")
    except ClientStateError as error:
        raise ConfigError(str(error)) from error
    vector = model.trainer.parameters()
    if own is None or not 0 < len(own) < len(vector):
        raise ConfigError(f"{place}: what client {client} keeps is not this model's last layers")
    vector[-len(own) :] = own
    model.trainer.load(vector)


def _promise(model: SavedModel) -> str:
    """One sentence of the statement, which is the server's word."""
    statement = Statement.from_dict(model.about["privacy"])
    if not statement.protects_model:
        return "by its server's word no finite ε protects the data behind it"
    least = min(statement.guarantees, key=lambda each: each.stated)
    return f"by its server's word ε = {format_number(least.stated)} of a {statement.unit}"
