"""How fast the simulator is: beside a plain loop, other simulators, and its own compiled kernel."""
