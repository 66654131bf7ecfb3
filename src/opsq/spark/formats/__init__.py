"""Chunk formats: Arrow tables to bytes and back, without PySpark where possible."""
