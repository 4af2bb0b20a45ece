"""How many bytes a message carries."""

from __future__ import annotations

from flwr.app import RecordDict


def message_size(content: RecordDict) -> int:
    """Bytes of a message's arrays and records as they travel."""
    arrays = sum(len(a.data) for record in content.array_records.values() for a in record.values())
    return arrays + sum(len(record.deflate()) for record in content.config_records.values())
