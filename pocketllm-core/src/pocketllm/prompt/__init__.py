"""The prompt boundary: from a request's messages or text to the token ids, limits and grammar that an engine gets."""
