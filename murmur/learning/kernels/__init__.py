"""Hand-written gradients, a compiled block and bfloat16, behind the ``Backend`` protocol.

Without this folder everything runs, slower (``murmur.learning.process.has_kernels``). ``sequences``
is its door, ``stages`` the layers, ``fused`` the first block as machine code.
"""
