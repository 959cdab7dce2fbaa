"""One open engine: its call, its outbox, its hooks, and the child process it may run in. Nothing here knows a host."""
