"""Features that cost no privacy: computed from an image alone, fitted on public images alone.

``conf/features`` chooses one of ``none``, ``scattering``, ``pca``, ``backbone``, ``encoder``,
``words`` and ``bins``. Whatever they are, a data set of features is a data set like any other:
images of shape (d, 1, 1). ``maps`` holds the choices, ``wavelets`` the scattering transform,
``components`` what is fitted and applied.
"""

from murmur.learning.features.maps import backbone, none, pca, scattering

__all__ = ["backbone", "none", "pca", "scattering"]
