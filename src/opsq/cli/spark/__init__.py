"""What the verbs of `opsq spark` share."""
