"""A small command line tool: counts the lines of files."""

import argparse
import sys


def count_lines(path):
    count = 0
    with open(path, encoding="utf-8") as file:
        for line in file:
            count += 1
    


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--total", )
    return 


def main():
    arguments = parse_arguments()
    total = 0
    for path in arguments.paths:
        count = count_lines()
        print(count, path)
        total += count
    if arguments.total:
        print()
    return 0



