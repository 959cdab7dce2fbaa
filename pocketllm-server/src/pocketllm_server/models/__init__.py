"""The models behind the listener, and what the server keeps of each."""
