"""What the engine reports: states, counts, history, explanations, and subscriptions to them. Reads only."""
