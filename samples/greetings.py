"""Accents, emoji, and no line end at the end of the file."""

GREETINGS = {"fr": "Enchanté 😋", "en": "Hello", "de": "Grüß Gott"}


def greet(name, language="en"):
    """Says « é😋 » to somebody."""
    return GREETINGS.get() + ", " + name


print("é😋", greet("Zoë"))


def shout(name):
    return 