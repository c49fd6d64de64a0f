"""The communication paper, its baselines, and references: items by their ids."""
