"""What people run: the command line, and what its commands share. The only layer that prints or reads the environment."""
