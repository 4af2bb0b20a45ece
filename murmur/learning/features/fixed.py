"""Feature maps without parameters: none at all, the pixels, and the scattering transform."""

from __future__ import annotations

from murmur.learning.features.components import Features


def none() -> None:
    """The images as they are."""


def pca(*, components: int = 50) -> Features:
    """Principal components of the pixels."""
    return Features("pca", lambda images: images, components)


def scattering(*, components: int = 400) -> Features:
    """Principal components of the scattering transform."""
    from murmur.learning.features.wavelets import scatter

    return Features("scattering", scatter, components)
