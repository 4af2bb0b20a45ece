"""``murmur data KEY=VALUE ...``: the data card of a run, without the run."""

import sys

from fl_app.config.errors import ConfigError
from fl_app.tools.options import parser_of


def main(argv: list[str]) -> int:
    """Print the card of the data that ``argv`` describes, and rows where it asks for some.

    Returns:
        0.

    Raises:
        ConfigError: the data cannot be read, the settings are wrong, or rows would go elsewhere
            than to a terminal.
    """
    arguments = parser_of("data").parse_intermixed_args(argv)
    if arguments.rows is not None and not sys.stdout.isatty():
        raise ConfigError(
            f"--rows={arguments.rows}: rows are shown on a terminal and written nowhere, and "
            "standard output is none; leave --rows out, or type the command in a terminal"
        )
    import fl_app.console
    from fl_app.config.composition import compose
    from fl_app.run.data_card import rows_shown
    from fl_app.run.prepare import card_of

    console = fl_app.console.console()
    lines = card_of(arguments.overrides).lines(console.width)
    if arguments.rows is not None:
        lines += rows_shown(compose(arguments.overrides), arguments.rows, console.width)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    return 0
