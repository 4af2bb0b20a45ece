"""The Flower ClientApp: one message in, one summed contribution out.

On a device every message has a process of its own, so what needs PyTorch is imported only where a
message needs it. There the owner's policy is asked first, then what the device agrees to
(``fl_app.device.agreement``). Of what goes wrong the server hears one sentence, always the same.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.common.constant import ErrorCode

from fl_app.config import compose, instantiate, overrides, plugins, settings
from fl_app.device.node_settings import DeviceError, NodeSettings, is_simulated
from fl_app.run import offer
from murmur.round.task import RECEIPTS, REFUSED, log_error, reply_to

if TYPE_CHECKING:
    from fl_app.device.health import Health

app = ClientApp()


@app.train()
@app.query()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Let every client that the message names do what it asks; all kinds go the same way.

    On a device whatever goes wrong in answering is written to its own log, and the server hears the
    one sentence ``REFUSED``. The error's code tells it whether any client's code had begun; where
    not, nobody was charged. In a simulation exceptions pass through.

    Args:
        message: the server's, untrusted.
        context: what the node is (simulated, or an owner's settings) and the run-config.

    Returns:
        The reply: the clients' contributions, summed unless the algorithm needs each, and who
        refused.
    """
    if is_simulated(context.node_config):
        return reply_to(message, _simulated(message, context))
    from fl_app.device.health import Health

    code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION  # tells the server that no client was touched
    try:
        health = Health(context.node_config)
    except DeviceError as error:  # there is no folder to write it down in
        log(logging.ERROR, "%s", error)
        return reply_to(message, Error(code=code, reason=REFUSED))
    try:
        answer_of = _on_device(message, context, health)
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        reply = reply_to(message, answer_of(message.content))
    except Exception as error:
        log_error(health.folder, f"run {context.run_id}", error)
        reply = reply_to(message, Error(code=code, reason=REFUSED))
    health.replied(message.content, reply)
    return reply


def _simulated(message: Message, context: Context) -> RecordDict:
    config = compose.compose(overrides.to_overrides(context.run_config))
    folder = overrides.run_folder_path(config.run_dir, config.results_dir, context.run_id)
    name = folder.name if config.run_name is None else str(config.run_name)
    from fl_app.run.hosts import SimulatedHost, host_for
    from murmur.round.site import SimulatedSite

    site = SimulatedSite.of(folder, config.privacy.policy, name)
    host = host_for(config, site, SimulatedHost)
    return host.answer(message.content, message.metadata.message_type)


def _on_device(
    message: Message, context: Context, health: "Health"
) -> Callable[[RecordDict], RecordDict]:
    """Returns the function that answers, once the policy holds and the device agrees to the run.

    In this order: the owner's policy, before anything that a server has sent is read; what keeps a
    finished model that is offered (``fl_app.device.received``), or gives receipts of a finished run
    (``murmur.round.receipts``); whether the configuration is one that a server may ask for; then
    either the clients' part in a secure sum, which needs no model, or the host. Raises whatever
    forbids an answer.
    """
    plugins.forget()  # a device runs what its owner has installed
    site = NodeSettings.device(context.node_config, f"run-{context.run_id}")
    site.require_policy()
    if offer.is_offer(message.content):
        from fl_app.device.received import receive

        run_config = context.run_config
        return partial(receive, run_config=run_config, run_id=context.run_id, site=site)
    from fl_app.device.agreement import device_config, run_name

    site = replace(site, run=run_name(context.run_config, context.run_id))
    if RECEIPTS in message.content:
        from murmur.round.receipts import give

        clients = map(str, site.owner.clients)
        return partial(
            give,
            run=site.run,
            folder=site.folder,
            policy=site.policy,
            clients=clients,
            peers=site.owner.sums.peers_rule,
        )
    config = device_config(context.run_config, site.owner)
    privacy: settings.PrivacySettings = instantiate.build(config.privacy, "privacy")
    secure = site.parties(privacy.secure_sums())
    if secure.answers(message.content):
        # No phase but the masking one is charged, and so asks the policy.
        site.policy.require_algorithm(str(config.strategy.name), datetime.now(UTC))
        return secure.answer
    from fl_app.device.hosts import DeviceHost
    from fl_app.run.hosts import host_for

    health.host = host_for(config, site, DeviceHost)
    return partial(health.host.answer, kind=message.metadata.message_type)
