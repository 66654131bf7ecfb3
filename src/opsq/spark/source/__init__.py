"""The data source `opsq`: what Spark calls, and what that does."""
