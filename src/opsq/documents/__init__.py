"""What is told of the queue: JSON documents, as `--json` prints them and HTTP serves them, and words for people."""
