"""Classes that drive the native engine token by token, as the API guide has them. Import them from ``pocketllm_cpp``.

``sequence_engine`` is one sequence over one model; ``persistent_engine`` and ``qwen_engine`` (with ``qwen_options``)
are its two faces. ``batch_scheduler`` (with ``batch_types``) runs the requests of many threads. The adapter to core,
beside this folder, uses none of them.
"""
