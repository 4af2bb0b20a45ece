"""PrivateKT: labels of public images as answers, and the server's model that learns from them.

Qi, Wu, Wu, He, Huang, Xie: "Differentially private knowledge transfer for federated learning",
Nature Communications 14 (2023), s41467-023-38794-x. Clients label K public images; each label is
randomised and costs ε/K (eq. 2 and 6, ``murmur.privacy.mechanisms.RandomizedResponse``), the server
removes the bias (eq. 3, its ``debias``). Two algorithms share this folder:

* ``strategy=privatekt`` answers with ``SharedLabels`` (the paper: all clients label the same
  images) or ``DisjointLabels`` (every client has images of its own; few labels each, so that each
  is kept with a useful probability). Both hold against whoever reads messages.
* ``strategy=votes`` answers with ``Votes``: one-hot rows plus a share of discrete Gaussian noise,
  for sums. Not in the paper.

Whatever the answers, a ``KnowledgeBuffer`` draws the images by the entropy of its model (eq. 4),
keeps what was said, is fine-tuned on it, and trains itself further (eq. 5).
"""
