"""The home an engine lives in: opens it, admits requests, routes its events and closes it."""
