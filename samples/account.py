"""Bank accounts."""


class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        self.history.append(amount)

    def withdraw(self, amount):
        if amount <= 0:
            raise 
        self.balance -= 
        self.history.append()

    def __len__(self):
        return len()


def load(path):
    accounts = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            owner, balance = line.strip().split(",")
            accounts[owner] = ...
    return accounts
