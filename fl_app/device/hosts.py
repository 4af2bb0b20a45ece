"""Builds a device's host: the configuration is the run's, data and compute are the owner's.

Called for messages that ask for a release (``fl_app.client_app``), after the policy was asked and
the device has agreed to the run. It imports PyTorch, which other messages do without.
"""

from dataclasses import replace

from omegaconf import DictConfig

from fl_app.config.client_half import started_with
from fl_app.config.instantiate import build
from fl_app.config.settings import ComputeSettings, FederationSettings, PrivacySettings
from fl_app.device.data import OwnData, device_population, schema_in
from fl_app.device.node_settings import NodeSettings
from fl_app.run.hosts import ClientHalf, build_trainer, record_key, require_usable, values_of
from fl_app.run.population import build_features
from fl_app.run.tasks import require_task
from murmur.learning.process import has_compiler
from murmur.round.host import Host


class DeviceHost(Host):
    """The host of the clients whose data are on this device, and what it was built of.

    Args:
        config: what the device agreed to (``agreement.device_config``).
        site: its owner's settings, with the run's name.

    Attributes:
        config: the same.
        population: what is known here before data are opened.
        trainer: on the owner's device and in the owner's precision.

    Raises:
        DeviceError: the owner's words lack something, or do not fit the run.
        ConfigError: the run's settings do not fit together, or its model cannot be trained here.
            Both before anything is charged.
    """

    def __init__(self, config: DictConfig, site: NodeSettings) -> None:
        require_task(config)
        self.config = config
        owner = site.owner
        federation: FederationSettings = build(config.federation, "federation")
        terms = federation.device_data_spec()
        assert terms is not None
        features = build_features(config.features)
        self.population = device_population(owner, terms, features)
        fitted = self.population.fitted
        data = OwnData(owner, terms, site.folder, features, fitted, schema_in(fitted))
        compute = ComputeSettings(owner.compute, fused=has_compiler(), precision=owner.precision)
        self.trainer = build_trainer(config, self.population.dataset, compute=compute)
        require_usable(self.trainer)  # a charge must buy something, whoever asks
        privacy: PrivacySettings = build(config.privacy, "privacy")
        key = record_key(config, site.folder)
        half = ClientHalf.build(config, self.population, self.trainer, site.state_dir, key)
        values = values_of(config, site, half, data)
        super().__init__(
            site=site,
            client_ids=owner.clients,
            secure=replace(site.parties(privacy.secure_sums()), started=started_with(config)),
            stack=compute.stack,
            **values,
        )
