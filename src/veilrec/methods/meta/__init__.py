"""Methods that learn how to learn on a device (Wang et al., PrivRec)."""
