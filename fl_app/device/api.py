"""What a package that answers on a device stands on: ``murmur-guard`` imports these names alone."""

from fl_app.api import parser_of
from fl_app.device.checks import FAIL, OK, WARN, Check, attempt, policy_file
from fl_app.device.command import pairs_in, serve
from fl_app.device.node_settings import DeviceError
from fl_app.device.service import DeviceService
from murmur.processes import adopt_orphans
from murmur.round.task import log_error

__all__ = [
    "FAIL",
    "OK",
    "WARN",
    "Check",
    "DeviceError",
    "DeviceService",
    "adopt_orphans",
    "attempt",
    "log_error",
    "pairs_in",
    "parser_of",
    "policy_file",
    "serve",
]
