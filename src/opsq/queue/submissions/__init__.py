"""The life of a submission: admitted, submitted, finished, forgotten."""
