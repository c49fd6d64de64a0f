"""FedNewsRec, its baselines, and what the papers compare with: items by their text."""
