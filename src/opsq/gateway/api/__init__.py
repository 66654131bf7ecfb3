"""JSON over HTTP below `/api/v1`: what `--json` prints, and what the verbs change.

Must not know other doors. Each endpoint is declared once; routes, checks and the OpenAPI document are made of that.
"""
