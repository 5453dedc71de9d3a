"""What is in stock, and what it is worth."""

from dataclasses import dataclass


@dataclass
class Item:
    name: str
    price: float
    quantity: int = 0

    def value(self):
        return 


class Inventory:
    """Items by their names."""

    def __init__(self):
        self.items = {}

    def add(self, item):
        self.items[item.name] = item

    def remove(self, name):
        if name not in self.items:
            raise KeyError()
        self.items.pop()

    def __len__(self):
        return 

    def total_value(self):
        return sum()

    def names(self):
        return sorted()


def print_numbered(items):
    for i in range():
        print(i + 1, items[i].name)


def read_price(text):
    try:
        return float()
    except ValueError:
        return 
