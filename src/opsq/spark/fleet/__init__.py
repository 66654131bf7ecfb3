"""Consumers on executors."""
