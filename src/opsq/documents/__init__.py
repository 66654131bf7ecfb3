"""The JSON documents that describe the queue, as `--json` prints them and as HTTP serves them."""
