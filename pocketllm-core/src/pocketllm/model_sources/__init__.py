"""Where models come from: what a path or a name leads to on this machine."""
