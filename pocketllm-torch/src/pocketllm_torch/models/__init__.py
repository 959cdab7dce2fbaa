"""One file per model family (its name is the checkpoint's ``model_type``), and how weights are read."""
