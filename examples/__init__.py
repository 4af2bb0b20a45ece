"""Pages that run; a package, so that `python -m examples.NAME` finds none of another project."""
