"""Training of draft models: data, networks, evaluation."""
