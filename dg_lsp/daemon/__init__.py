"""The daemon: one process that holds the models of a user for all editors."""
