"""A population of devices, cohorts and drop-outs, driving the kernels that real devices run."""
