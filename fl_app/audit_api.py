"""What attacks on a run's releases stand on: ``murmur-report`` imports these names, and no others.

Less is promised of them than of ``fl_app.api``: they are a run's own parts, and change with it.
"""

from clients.base import Client, LocalData, Task, has_canaries, null_records
from clients.protected_evaluation import PROTECTED, EvaluationClient
from fl_app.config.compose import changed, compose, load
from fl_app.config.errors import ConfigError
from fl_app.console import console
from fl_app.engines.inline import InlineGrid
from fl_app.run.hosts import SimulatedHost
from fl_app.run.load import load_stated
from fl_app.run.progress import format_epsilon
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from fl_app.tools.options import parser_of
from murmur.compat.flower_messages import identify
from murmur.privacy.exposure import with_evaluation
from murmur.round.phase import Phase
from murmur.round.question import Outcome
from murmur.round.secure_summation import SecureSummation
from murmur.round.site import SimulatedSite
from murmur.round.task import RECORD
from strategies.base import CohortStrategy

__all__ = [
    "PROTECTED",
    "RECORD",
    "Client",
    "CohortStrategy",
    "ConfigError",
    "EvaluationClient",
    "InlineGrid",
    "LocalData",
    "Outcome",
    "Phase",
    "RunFolder",
    "SecureSummation",
    "SimulatedHost",
    "SimulatedSite",
    "Task",
    "ValidatedRun",
    "changed",
    "compose",
    "console",
    "format_epsilon",
    "has_canaries",
    "identify",
    "load",
    "load_stated",
    "null_records",
    "parser_of",
    "with_evaluation",
]
