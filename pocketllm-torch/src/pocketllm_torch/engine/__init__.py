"""The step loop: sequences, blocks, schedule, forward pass, sampling."""
