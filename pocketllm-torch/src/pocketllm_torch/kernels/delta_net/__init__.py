"""The gated delta rule."""
