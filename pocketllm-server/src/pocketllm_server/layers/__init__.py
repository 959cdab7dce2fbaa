"""ASGI layers around the routes: each bounds, checks, counts or reports, and calls the next."""
