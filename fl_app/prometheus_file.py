"""Figures in Prometheus' text format, for node_exporter's textfile collector (deploy/README.md).

The file is replaced as a whole, so that no reader meets half of it. Runs (``fl_app.tracking``)
and devices (``fl_app.device.health``) each write one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import write_to_textfile
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

NAME = "metrics.prom"


@dataclass(eq=False)
class Figures(Collector):
    """Values that Prometheus reads.

    Args:
        meanings: name -> what it says, for each value.
        values: by name, each with a meaning; names ending in ``_total`` only grow and become
            counters, all others gauges.
        label: name and value of the label that all of them carry: whose they are.
    """

    meanings: Mapping[str, str]
    values: Mapping[str, float]
    label: tuple[str, str]

    def collect(self) -> Iterator[Metric]:
        """One family for each value."""
        name, whose = self.label
        for figure, value in self.values.items():
            kind: type[CounterMetricFamily | GaugeMetricFamily] = GaugeMetricFamily
            if figure.endswith("_total"):
                kind = CounterMetricFamily
            family = kind(figure, self.meanings[figure], labels=[name])
            family.add_metric([whose], value)
            yield family


def write(path: Path, figures: Figures) -> None:
    """Replace the file at ``path``.

    Raises:
        OSError: that is not possible.
    """
    write_to_textfile(str(path), figures)


def read(path: Path) -> dict[str, float]:
    """The values in the file at ``path`` by name; none where it is missing or damaged."""
    try:
        families = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
    return {sample.name: sample.value for family in families for sample in family.samples}
