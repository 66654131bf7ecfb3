"""The options of the verbs, and the values that people type."""
