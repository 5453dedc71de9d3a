"""A GGUF that is split into several files, as large ones are for download."""

import re
from pathlib import Path

from dg_lsp.errors import ModelBrokenError, ModelNotFoundError
from dg_lsp.gguf import GGUFHeader, read_header

_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def read_shards(path: Path) -> tuple[GGUFHeader, ...]:
    """All files of a model, the one with the metadata first; any of them may be named.

    Raises:
        ModelNotFoundError: one is missing.
        ModelBrokenError: one is damaged or cut short.
        ModelUnsupportedError: of a version, byte order or number format that is not known.
    """
    header = read_header(path)
    count = header.values["split.count"].read() if "split.count" in header.values else 1
    if count == 1:
        return (header,)
    match = _NUMBERED.fullmatch(path.name)
    if match is None or not isinstance(count, int) or int(match[3]) != count:
        raise ModelBrokenError(f"{path} is one of {count} files and named otherwise: give it back its name")
    paths = [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    if missing := [one.name for one in paths if not one.is_file()]:
        raise ModelNotFoundError(f"{path.parent} lacks {missing[0]} ({len(missing)} of {count} files): download it")
    return tuple(read_header(one) for one in paths)
