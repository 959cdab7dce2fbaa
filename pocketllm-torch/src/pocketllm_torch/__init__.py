"""The PyTorch and Triton engine of PocketLLM."""
