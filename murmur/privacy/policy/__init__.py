"""The device owner's policy: what may leave this device, whatever a server asks for.

Default deny: what the policy does not name is refused, and a policy that is missing, malformed
or expired refuses everything. The file is explained line by line in
``deploy/policy.example.yaml``.
"""

from murmur.privacy.policy.policy import AloneRules, GuardRules, Policy, Refusal

__all__ = ["AloneRules", "GuardRules", "Policy", "Refusal"]
