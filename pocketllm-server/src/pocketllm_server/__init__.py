"""The OpenAI-compatible HTTP server of PocketLLM. Start with :func:`pocketllm_server.app.create_app`."""
