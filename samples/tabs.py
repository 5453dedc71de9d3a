"""Indented with tabs."""


class Counter:
	def __init__(self, start=0):
		self.count = start

	def up(self):
		self.count += 1
		

	def down(self):
		self.count -= 1
		return 

	def reset(self):
		self.count = 0
