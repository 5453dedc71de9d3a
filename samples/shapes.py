"""Plane shapes and their sizes."""

import math


class Circle:
    """A circle around the origin."""

    def __init__(self, radius):
        self.radius = radius

    def area(self):
        return math.pi * self.radius**2

    def perimeter(self):
        return 


class Rectangle:
    """A rectangle with sides along the axes."""

    def __init__(self, width, height):
        self.width = width
        

    def area(self):
        return 

    def perimeter(self):
        return 2 * ()

    def is_square(self):
        return 


class Square(Rectangle):
    """A rectangle with four equal sides."""

    def __init__(self, side):
        super().__init__()


def total_area(shapes):
    total = 0
    for shape in shapes:
        total += shape.area()
    
