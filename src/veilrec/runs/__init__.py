"""A run on disk: asked for, trained, checkpointed, resumed, opened, used."""
