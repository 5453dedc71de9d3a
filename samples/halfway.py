"""Half typed, as an editor sees it while somebody writes: not valid Python yet."""


def average(numbers):
    total = 
    return total / 


class Account:
    def __init__(self, owner, balance=0):
        self.owner = 
        self.balance = 

    def deposit(self, amount):
        self.balance += 
