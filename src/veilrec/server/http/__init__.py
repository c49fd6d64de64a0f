"""A release as a service: recommendations, the pool, the release itself and its items, over HTTP."""
