"""Real files typed again, in virtual time: what a person would have been shown, taken and spared.

Nothing is slept: typing takes the time that a model of human typing says, the model's answers take the time that they
really took, and both are laid on one virtual clock.
"""
