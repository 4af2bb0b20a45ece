"""The Flower ClientApp: one message in, one summed contribution out."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.config import from_run_config
from fl_app.node import node_for
from fl_app.site import site_of
from learning.memory import keep_heap

keep_heap()

app = ClientApp()


@app.train()
@app.query()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Let every client that the message names do what it asks; all kinds go the same way."""
    config = from_run_config(context.run_config)
    node = node_for(config, site_of(config, context.node_config, context.run_id))
    return Message(node.answer(message.content), reply_to=message)
