"""The command line. `main` knows the commands by name; each command's module loads when it is called."""
