"""Names of models: what a path or a name leads to on this machine."""
