"""Programs that measure, and say on what."""
