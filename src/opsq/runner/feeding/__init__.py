"""How a program gets a chunk and returns a result: once per chunk, per record, or as a long-lived server."""
