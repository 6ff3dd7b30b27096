"""Tools: how they are shown to a model, and how its calls are found in what it writes."""
