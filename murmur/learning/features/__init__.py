"""Features that cost no privacy: computed from an image alone, fitted on public images alone.

``conf/features`` chooses one of ``none``, ``scattering``, ``pca`` and ``backbone``. Whatever they
are, a data set of features is a data set like any other: images of shape (d, 1, 1).
"""

from murmur.learning.features.components import Components, FeatureMap, Features, fit
from murmur.learning.features.dataset import featured
from murmur.learning.features.fixed import none, pca, scattering
from murmur.learning.features.frozen_network import backbone

__all__ = [
    "Components",
    "FeatureMap",
    "Features",
    "backbone",
    "featured",
    "fit",
    "none",
    "pca",
    "scattering",
]
