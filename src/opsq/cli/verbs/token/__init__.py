"""List, create or revoke the tokens of TCP clients."""
