"""Types real files again in virtual time: what a user would see, accept and save.

Nothing sleeps. A typing model gives the time of each key, the model takes the time that it really needs, and both are
added up on a virtual clock.
"""
