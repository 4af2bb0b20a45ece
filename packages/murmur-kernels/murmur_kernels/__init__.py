"""Hand-written gradients, compiled blocks and bfloat16, behind Murmur's ``Backend`` protocol.

Murmur finds ``sequences``, ``dpfl_bnn`` and ``clipping`` by entry points of the group
``murmur.backends``. ``stages`` are the layers, ``fused`` the first block as machine code,
``pooled`` later ones, ``lockstep`` many tiny clients at once. ``clipping`` sums DP-SGD's gradients.
"""
