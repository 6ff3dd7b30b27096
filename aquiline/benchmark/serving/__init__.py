"""A client that measures servers of the OpenAI API under load."""
