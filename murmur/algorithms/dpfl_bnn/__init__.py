"""DPFL-BNN: the binary network, its gradients, its bits as a release, and the paper's claim."""
