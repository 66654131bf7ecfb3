"""List what has happened to chunks, write it to files for other programs, or delete it."""
