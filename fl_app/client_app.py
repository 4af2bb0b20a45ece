"""The Flower ClientApp: one message in, one summed contribution out.

On a device every message has a process of its own, so what needs PyTorch is imported only where a
message needs it, and no error's text leaves but what is written to be told (``DeviceError``).
"""

from __future__ import annotations

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fl_app.config.composition import ConfigError, build, from_run_config
from fl_app.config.run_config import require_plain
from fl_app.config.settings import PrivacySettings
from fl_app.device.node_settings import DeviceError, device_folder, is_simulated, log_error, site_of
from fl_app.device.secure_node import SecureNode

app = ClientApp()


@app.train()
@app.query()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Let every client that the message names do what it asks; all kinds go the same way."""
    if is_simulated(context.node_config):
        return _answer(message, context)
    try:
        require_plain(context.run_config)
        return _answer(message, context)
    except Exception as error:
        log_error(device_folder(context.node_config), f"run {context.run_id}", error)
        # A ConfigError repeats what the server sent, which by now is plain, and what conf/ allows.
        telling = isinstance(error, DeviceError | ConfigError)
        reason = str(error) if telling else "failed; its own log says why"
        return Message(
            Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message
        )


def _answer(message: Message, context: Context) -> Message:
    config = from_run_config(context.run_config)
    site = site_of(config, context.node_config, context.run_id)
    if site.own is not None:
        privacy: PrivacySettings = build(config.privacy, "privacy")
        hosts = site.own.clients.__contains__
        secure = SecureNode(privacy.secure_sums(), site.folder, hosts, site.sum_rules)
        if secure.answers(message.content):
            return Message(secure.answer(message.content), reply_to=message)
    from fl_app.device.node import node_for
    from learning.training.memory import keep_heap

    keep_heap()
    return Message(node_for(config, site).answer(message.content), reply_to=message)
