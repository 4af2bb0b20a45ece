"""Flower's messages, contexts and records as bytes of its protobuf, and back.

Flower's own serialization is private to it, and the classes of its protobuf are as well.
"""

from flwr.app import Context, Message, RecordDict
from flwr.common import serde
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto


def message_bytes(message: Message) -> bytes:
    """Returns ``message`` as bytes."""
    return bytes(serde.message_to_proto(message).SerializeToString())


def message_of(raw: bytes) -> Message:
    """Returns the message of ``message_bytes``."""
    return serde.message_from_proto(MessageProto.FromString(raw))


def context_bytes(context: Context) -> bytes:
    """Returns ``context`` as bytes."""
    return bytes(serde.context_to_proto(context).SerializeToString())


def context_of(raw: bytes) -> Context:
    """Returns the context of ``context_bytes``."""
    return serde.context_from_proto(ContextProto.FromString(raw))


def record_bytes(record: RecordDict) -> bytes:
    """Returns ``record`` as bytes."""
    return bytes(serde.recorddict_to_proto(record).SerializeToString())


def record_of(raw: bytes) -> RecordDict:
    """Returns the record of ``record_bytes``."""
    return serde.recorddict_from_proto(RecordDictProto.FromString(raw))
