"""Facts about this machine that explain why a backend can or cannot run. Nothing heavy is imported."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

_DISTRIBUTIONS = re.compile(r"^(pocketllm[-_].*|torch|triton|tokenizers|safetensors|llguidance|llm[-_]smollm2)$", re.I)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.I)


def environment_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """What -> how it is, both for a person."""
    facts = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cpus": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": _memory(),
        "gpus": _gpus(),
    }
    facts.update(sorted(_versions().items()))
    for name in sorted(environ):
        if name.startswith("POCKETLLM_"):
            facts[name] = "(set)" if _SECRET.search(name) else environ[name]
    return facts


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (ValueError, OSError):
        return "unknown"


def _gpus() -> str:
    """Cards whose driver is loaded, as its files say."""
    found = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        model = re.search(r"^Model:\s*(.+)$", information.read_text(errors="replace"), re.M)
        found.append(model[1].strip() if model else "NVIDIA")
    found += [f"Ascend {path.name}" for path in sorted(Path("/dev").glob("davinci[0-9]*"))]
    return ", ".join(found) or "none found"


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if _DISTRIBUTIONS.match(name):
            versions.setdefault(name, distribution.version)
    return versions
