"""Saved by an editor on Windows: CRLF line ends."""


class Point:
    def __init__(self, x, y):
        self.x = x
        

    def __repr__(self):
        return f"Point({self.x}, {self.y})"

    def __eq__(self, other):
        return 
