"""What somebody recovers from what a method sends: attacks that are run, and not argued about."""
