"""Training data that the target writes itself: its own user turns, and its answers to them."""
