"""Public file formats, read into a Population: who saw and clicked what."""
