"""Delivers events to programs and webhooks: a consumer of events, which the daemon does not know."""
