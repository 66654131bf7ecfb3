"""List the history of chunks, export it to files for other programs, or delete it."""
