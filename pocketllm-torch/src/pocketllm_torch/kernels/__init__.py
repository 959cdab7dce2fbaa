"""One folder per operation: ``reference.py`` is the truth, ``kernel.py`` the Triton kernel, README the maths."""
