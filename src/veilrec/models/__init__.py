"""Models and their scores; they know nothing of federation."""
