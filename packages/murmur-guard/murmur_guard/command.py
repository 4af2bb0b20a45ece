"""``murmur guard``: answers a SuperNode with a server's own app, locked in and protected."""

from pathlib import Path

from fl_app.device.api import pairs_in, parser_of, serve
from murmur_guard.guard import Guard

OPTIONS = Path(__file__).with_name("options.yaml")


def main(argv: list[str]) -> int:
    """Answers a SuperNode's messages until this process is interrupted.

    The app is unmodified, in a process that reads the owner's data and writes nowhere. Its update
    is clipped, noised and masked here. What it may do is in the device's policy, under ``guard``.

    Args:
        argv: the words after ``murmur guard``: the owner's own, which no server can change.

    Returns:
        0: it was interrupted. 1: what listens at the address is not the SuperNode of this secret.
        2: the words, the secret's file, the device's policy, the installed Flower or this machine
        are not what is needed.
    """
    arguments = parser_of("guard", OPTIONS).parse_args(argv)

    def guard() -> Guard:
        folder = arguments.device.expanduser().absolute()
        return Guard(folder, pairs_in(arguments.node_config))

    return serve("murmur guard", arguments, guard)
