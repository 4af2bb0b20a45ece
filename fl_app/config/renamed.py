"""Keys and choices of ``conf`` under their earlier names.

A word that is typed with an earlier name is answered with the present one. Words of recorded runs
are read with it.
"""

CHOICES = {"partition": {"legacy": "privatekt_authors"}}


def new_choice(group: str, choice: str) -> str | None:
    """The present name of a group's ``choice``; None where it has no other."""
    return CHOICES.get(group, {}).get(choice)


def current(word: str) -> str:
    """An override of a recorded run, ``KEY=VALUE``, under its present name."""
    key, _, value = word.partition("=")
    choice = new_choice(key, value)
    if choice is None:
        return word
    return f"{key}={choice}"
