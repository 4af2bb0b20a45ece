"""Policies as files: the example, and whatever a test makes of it."""

import pytest
import yaml

from murmur.privacy.policy import Policy
from tests.murmur.privacy.policy.policy_cases import EXAMPLE


@pytest.fixture
def plain():
    """The example policy as a mapping of text."""
    return yaml.load(EXAMPLE.read_text(), yaml.BaseLoader)


@pytest.fixture
def load(tmp_path):
    def load_policy(content):
        path = tmp_path / "policy.yaml"
        if isinstance(content, dict):
            content = yaml.safe_dump(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return Policy.load(path)

    return load_policy
