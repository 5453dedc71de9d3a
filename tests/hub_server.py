"""A model hub on this machine: the part of the real interface that a download needs, and ways to fail."""

import hashlib
import json
from contextlib import closing
from urllib.parse import unquote, urlsplit

from lying_server import LyingServer, reply

COMMIT = "c0ffee" + 34 * "0"
END_OF_HEAD = b"\r\n\r\n"


class HubServer(LyingServer):
    """Serves `files`, by path, as one repository."""

    def __init__(self, repository, files):
        super().__init__()
        self.repository = repository
        self.files = files
        self.failures = {}
        """Status and headers of the answers to requests whose path contains the key."""
        self.endpoint = self.url

    def answer_to(self, request):
        """`requests` has the paths."""
        method, target, _ = request.decode().split(" ", 2)
        path = unquote(urlsplit(target).path)
        self.requests.append(path)
        answer = self._whole_answer(path)
        return answer.partition(END_OF_HEAD)[0] + END_OF_HEAD if method == "HEAD" else answer

    def _whole_answer(self, path):
        failure = next((failure for part, failure in self.failures.items() if part in path), None)
        if failure is not None:
            status, headers = failure
            return reply("{}", f"{status} Failure", **headers)
        if path.startswith(f"/api/models/{self.repository}/revision/"):
            return reply(json.dumps({"id": self.repository, "sha": COMMIT, "siblings": [*self._entries()]}))
        folder = f"/{self.repository}/resolve/{COMMIT}/"
        if path.startswith(folder):
            content = self.files[path.removeprefix(folder)]
            return reply(content, ETag=f'"{hashlib.sha256(content).hexdigest()}"', X_Repo_Commit=COMMIT)
        return reply("{}", "404 Not Found", X_Error_Code="RepoNotFound")

    def _entries(self):
        for path, content in self.files.items():
            entry = {"rfilename": path, "size": len(content), "blobId": 40 * "1"}
            if not path.endswith(".json"):  # which is stored in git itself, without a SHA-256
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            yield entry


def serving(repository, files):
    return closing(HubServer(repository, files))
