"""Parts that all news methods share: configuration, encoders, rankers, federated plans."""
