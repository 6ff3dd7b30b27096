"""The bodies that clients send and read, field by field."""
