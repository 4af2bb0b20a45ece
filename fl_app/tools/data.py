"""``murmur data KEY=VALUE ...``: the data card of a run, without the run."""

import sys

from fl_app.config.errors import ConfigError
from fl_app.tools.options import parser_of


def main(argv: list[str]) -> int:
    """Print the card of the data that ``argv`` describes, and the rows or owners that it asks for.

    Returns:
        0.

    Raises:
        ConfigError: the data cannot be read, the settings are wrong, or rows or owners would
            go elsewhere than to a terminal.
    """
    arguments = parser_of("data").parse_intermixed_args(argv)
    private = [f"--rows={arguments.rows}"] if arguments.rows is not None else []
    private += ["--owners"] if arguments.owners else []
    if private and not sys.stdout.isatty():
        raise ConfigError(
            f"{' '.join(private)}: rows and owners are shown on a terminal and written nowhere, "
            "and standard output is none; leave it out, or type the command in a terminal"
        )
    import fl_app.console
    from fl_app.config.compose import compose
    from fl_app.run.data_card import owners_shown, rows_shown
    from fl_app.run.prepare import card_of

    console = fl_app.console.console()
    lines = card_of(arguments.overrides).lines(console.width)
    if arguments.owners:
        lines += owners_shown(compose(arguments.overrides))
    if arguments.rows is not None:
        lines += rows_shown(compose(arguments.overrides), arguments.rows, console.width)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    return 0
