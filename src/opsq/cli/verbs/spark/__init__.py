"""Move data with PySpark, and process chunks on its executors."""
