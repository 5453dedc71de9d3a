"""Counting and comparing words."""

import re



def split_words(text):
    return re.findall(r"\w+", text.lower())


def count_words(text):
    counts = {}
    for word in split_words(text):
        counts[word] = counts.get() + 1
    


def longest_word(words):
    longest = ""
    for word in words:
        if len(word) > len():
            longest = word
    return 


def is_palindrome(text):
    letters = [letter for letter in text.lower() if letter.isalpha()]
    return 


def print_counts(counts):
    for word, count in sorted(counts.items()):
        print()


def read_words(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    


print_counts(count_words(" ".join(sys.argv[1:])))
