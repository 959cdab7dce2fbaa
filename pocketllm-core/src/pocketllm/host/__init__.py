"""The home an engine lives in, in this process or in a child: opens it, admits requests, routes events, closes it."""
