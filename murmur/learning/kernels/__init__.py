"""Hand-written gradients, the compiled block, bfloat16: what makes training fast."""
