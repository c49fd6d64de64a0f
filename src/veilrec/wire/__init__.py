"""The one door between devices and server: the messages, their bytes, their checks."""
