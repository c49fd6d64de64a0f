"""The coordinator of a federation: enrolment, rounds, transports."""
