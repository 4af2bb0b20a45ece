"""Local training: the trainer, gradients by hand and by autograd, stacks of clients, DP-SGD."""
