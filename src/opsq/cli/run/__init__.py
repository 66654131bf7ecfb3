"""The round of `opsq run`: inputs in, programs run, results out."""
