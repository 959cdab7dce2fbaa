"""pluggy's markers of this project: what marks a specification and an implementation."""

from __future__ import annotations

import pluggy

PROJECT_NAME = "pocketllm"
hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
