"""Git repositories of tests, whatever the user's own configuration of Git is."""

import subprocess


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


def commit_each(folder, texts, names=("code.py",)):
    """A new repository with a commit for each text, which all of these files have then."""
    git(folder, "init", "--quiet")
    for text in texts:
        for name in names:
            (folder / name).write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", "change")
