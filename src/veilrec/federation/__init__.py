"""A plan run over a network: HTTPS and Flower transports, enrolment, secure aggregation."""
