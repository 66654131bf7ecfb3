"""What becomes of chunks: reserved, completed, failed, dead; one file for each."""
