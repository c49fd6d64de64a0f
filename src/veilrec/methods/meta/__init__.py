"""Methods that adapt a small model to each user on the device."""
