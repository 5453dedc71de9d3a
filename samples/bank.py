"""Accounts of a bank."""

from dataclasses import dataclass, field


@dataclass
class Account:
    owner: str
    balance: float = 0.0
    history: list = field(default_factory=list)

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        self.history.append(amount)
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        self.history.append(-amount)
        return self.balance


def load_accounts(path):
    accounts = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, balance = line.strip().split(",")
            accounts[name] = Account(name, float(balance))
    return accounts
