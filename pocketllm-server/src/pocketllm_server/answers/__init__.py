"""From accepted requests to the bytes of an answer."""
