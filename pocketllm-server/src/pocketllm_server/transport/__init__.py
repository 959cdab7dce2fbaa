"""Bytes and sockets: connections, HTTP chunks, TLS, bodies, and what is known of the exchange under way."""
