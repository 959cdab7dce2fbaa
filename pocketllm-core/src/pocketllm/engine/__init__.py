"""The engine side of core: slots, event path, request records, placements."""
