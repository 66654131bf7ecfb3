"""Run programs and call webhooks for events; list, retry or drop deliveries that were given up."""
