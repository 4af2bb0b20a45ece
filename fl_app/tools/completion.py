"""What there is to type: ``murmur experiments`` lists it, ``murmur completion SHELL`` completes it.

What is said of an experiment stands in its file under conf/experiment, as a comment and as
``about`` (``figure``: what of a paper it reproduces; ``minutes``: of one run on two cores, null
where not measured; ``expected``: the result and where it was measured).

    source <(murmur completion bash)           # in ~/.bashrc
    source <(murmur completion zsh)            # in ~/.zshrc, after compinit
    murmur completion fish | source            # in ~/.config/fish/config.fish
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

import fl_app.console
from fl_app.cli import TOOLS
from fl_app.config.groups import CONF
from fl_app.tools.options import parser_of


@dataclass(frozen=True)
class About:
    """One experiment, as its file describes it.

    Attributes:
        name: behind ``experiment=``.
        what: its first line of comment.
        figure: what of a paper it reproduces.
        minutes: of one run on two cores; None: not measured.
        expected: the result, and where it was measured.
    """

    name: str
    what: str
    figure: str
    minutes: float | None
    expected: str


def experiments() -> list[About]:
    """All of ``conf/experiment``, by name."""
    found = []
    for path in sorted((CONF / "experiment").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        what = text.splitlines()[1].removeprefix("# ")
        found.append(About(path.stem, what, **yaml.safe_load(text)["about"]))
    return found


def words() -> list[str]:
    """Tools, every group with each of its choices, and the keys of the default settings."""
    from fl_app.config.compose import known_keys
    from fl_app.config.groups import groups

    choices = [f"{group}={name}" for group, names in groups().items() for name in names]
    return [*TOOLS, *choices, *(f"{key}=" for key in known_keys())]


def list_experiments(argv: list[str]) -> int:
    """Print a table of the experiments; the exit status, 0."""
    from rich.table import Table

    parser_of("experiments").parse_args(argv)
    table = Table("experiment=", "what it is", "figure", "minutes", "expected", show_lines=True)
    for about in experiments():
        minutes = "not measured"
        if about.minutes is not None:
            minutes = f"{about.minutes:g}"
        table.add_row(about.name, about.what, about.figure, minutes, about.expected)
    console = fl_app.console.console()
    console.print(table)
    console.print("minutes: of one run on two cores; start one with `murmur experiment=NAME`")
    return 0


def completion(argv: list[str]) -> int:
    """Print the script for the shell that ``argv`` names.

    The words are in the script, so that completing starts no Python.

    Returns:
        0.
    """
    shell = parser_of("completion").parse_args(argv).shell
    if shell == "fish":
        for word in words():
            print(f"complete -c murmur -f -a '{word}'")
        return 0
    if shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    listed = "\n".join(words())
    script = Path(__file__).with_name("completion.bash").read_text(encoding="utf-8")
    print(f"_murmur_words='{listed}'\n{script}", end="")
    return 0
