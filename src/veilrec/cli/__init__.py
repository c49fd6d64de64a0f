"""Commands; thin wrappers over the package."""
