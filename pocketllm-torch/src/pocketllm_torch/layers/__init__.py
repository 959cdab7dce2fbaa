"""Building blocks of the model families, over flat token rows and a paged key/value cache."""
