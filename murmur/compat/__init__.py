"""Everything of Flower, Ray, Hydra and OmegaConf that they have not promised to keep.

``flower_messages`` has ids, senders and sizes of messages, ``flower_wire`` their bytes,
``flower_grid`` the one wrapper of a ``Grid``, ``flower_runtime`` a SuperNode's interface for tasks,
``flower_supernode`` the SuperNode itself, ``ray_workers`` how Ray's processes start,
``hydra_parser`` the words of a command, and ``omegaconf_copy`` copies of a configuration. No other
module imports such names or replaces a function of theirs, and a test holds that.

Where one of them is wrong, a function here mends it: its docstring says what upstream does, and in
which versions. For each mend ``tests/murmur/compat/test_needed.py`` shows the fault without it, and
so fails when upstream has mended it.
"""

# Versions of Flower that this is tested with; a SuperNode's interface for tasks is theirs.
FLOWER = ("1.41", "1.42")


def is_supported(flower: str) -> bool:
    """Tells whether ``flower``, a version such as 1.42.0, is one of ``FLOWER``."""
    return flower.startswith(tuple(f"{version}." for version in FLOWER))
