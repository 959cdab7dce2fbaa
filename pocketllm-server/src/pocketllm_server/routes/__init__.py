"""One file per family of routes; each endpoint is an ASGI application of its own."""
