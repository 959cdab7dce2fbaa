"""Installed plugins: found by metadata, loaded and judged one at a time, asked through one typed front.

``discovery`` finds them -> ``loading`` imports and checks one (``hook_calls``) -> ``registry`` asks them ->
``selection`` chooses a backend for a checkpoint.
"""
