"""``murmur completion SHELL``: a script with which the shell completes tools, choices and keys.

source <(murmur completion bash)           # in ~/.bashrc
source <(murmur completion zsh)            # in ~/.zshrc, after compinit
murmur completion fish | source            # in ~/.config/fish/config.fish
"""

from __future__ import annotations

import argparse

from fl_app.cli import TOOLS
from fl_app.config.composition import known_keys
from fl_app.config.conf_files import groups

_BASH = """\
_murmur() {
  local word="${COMP_LINE:0:COMP_POINT}" IFS=$'\\n'
  word="${word##* }"
  COMPREPLY=($(compgen -W "$_murmur_words" -- "$word"))
  # Bash takes "=" for the start of a word of its own.
  [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
}
complete -o default -o nospace -F _murmur murmur
"""


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur completion``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="murmur completion", description="Print a script that completes murmur's words."
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="bash|zsh|fish")
    shell = parser.parse_args(argv).shell
    if shell == "fish":
        for word in words():
            print(f"complete -c murmur -f -a '{word}'")
        return 0
    if shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    listed = "\n".join(words())
    print(f"_murmur_words='{listed}'\n{_BASH}", end="")
    return 0


def words() -> list[str]:
    """Tools, every group with each of its choices, and the keys of the default settings."""
    choices = [f"{group}={name}" for group, names in groups().items() for name in names]
    return [*TOOLS, *choices, *(f"{key}=" for key in known_keys())]
