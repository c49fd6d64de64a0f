"""The same plan over a network: HTTPS and Flower transports, enrolment, secure aggregation."""
