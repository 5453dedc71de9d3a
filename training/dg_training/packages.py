"""The pinned packages of three registries (PyPI, npm, Debian sources): download, stated licence and files.

packages.toml holds the versions. npm and Debian names have a prefix, because the registries use the same names.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.parser import HeaderParser
from fnmatch import translate
from pathlib import Path

PACKAGES = Path(__file__).with_name("packages.toml")
STDLIB = "stdlib"
NPM, DEBIAN, DEBIAN_SOURCE = "npm:", "debian:", "debian-source:"
FOLDERS = {"": "wheels", NPM: "npm", DEBIAN: "debian", DEBIAN_SOURCE: "debian-source"}
"""By the prefix of a package's name; a table of packages.toml, too."""
INSTALLED = re.compile(r"usr/share/(gocode/src|cargo/registry)/")  # where Debian installs source code
MAX_BYTES = 1_000_000  # larger files are not read
NUM_DOWNLOADS = 4  # at the same time

ALLOWED_LICENCE = re.compile(
    r"(?i)\b(mit(-0|-cmu)?|expat|bsd|0bsd|bsd[- ][0-9]-clause|[0-9]-clause bsd|apache|asl|psf|python-2\.0|"
    r"python software foundation|isc|iscl|zlib|unlicense|hpnd|historical permission notice|cc0|boost|bsl-1\.0|"
    r"postgresql|curl|x11|libpng)\b"
)
REFUSED_LICENCE = re.compile(
    r"(?i)\b[al]?gpl|general public|\bmpl\b|mozilla|\beupl|\bepl\b|eclipse|\bcddl|\bcecill|\bosl\b|affero|"
    r"proprietary|commercial|\bcc-by-(nc|sa)|business source|\bsspl|elastic license|all rights reserved"
)


@dataclass(frozen=True, slots=True)
class Package:
    """A package, or the folder of the standard library, with the licence that its metadata states."""

    name: str
    version: str
    licence: str
    path: Path
    """A folder, .whl, .tgz (npm), .deb, or the .dsc of a Debian source package with its archives beside it."""

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Relative path and content of each file of at most `MAX_BYTES`; of a folder, the Python files only."""
        if self.path.is_dir():
            for path in sorted(self.path.rglob("*.py")):
                yield path.relative_to(self.path).as_posix(), path.read_bytes()
        elif self.path.suffix == ".whl":
            with zipfile.ZipFile(self.path) as archive:
                for info in sorted(archive.infolist(), key=lambda item: item.filename):
                    if info.file_size <= MAX_BYTES and not info.is_dir():
                        yield info.filename, archive.read(info)
        elif self.path.suffix == ".tgz":
            yield from _tar_files(self.path)
        elif self.path.suffix == ".deb":
            yield from ((INSTALLED.sub("", path), raw) for path, raw in _deb_files(self.path))
        else:
            yield from self._debian_sources()

    def _debian_sources(self) -> Iterator[tuple[str, bytes]]:
        """The files of the original author whose own licence, by debian/copyright, is allowed."""
        archives = _debian_archives(self.path)
        licence_of = _licences_by_path(_debian_copyright(archives))
        for archive in archives:
            for path, raw in _tar_files(archive):
                if not path.startswith("debian/") and is_allowed(licence_of(path)):
                    yield path, raw


def _tar_files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Paths without the first folder, which is named after the package; `debian/` stays."""
    with tarfile.open(archive) as members:
        for path, raw in _members(members):
            inner = path if path.startswith("debian/") else path.partition("/")[2]
            if inner:
                yield inner, raw


def _deb_files(path: Path) -> Iterator[tuple[str, bytes]]:
    command = ["dpkg-deb", "--fsys-tarfile", str(path)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as members,
    ):
        yield from _members(members)


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        if member.isfile() and member.size <= MAX_BYTES and (file := archive.extractfile(member)):
            yield member.name.removeprefix("./"), file.read()


def read_package_list(path: Path = PACKAGES) -> tuple[dict[str, str], frozenset[str]]:
    """The content of packages.toml: exact versions, and the packages of the validation split."""
    table = tomllib.loads(path.read_text())
    versions = {prefix + name: v for prefix, key in FOLDERS.items() for name, v in table.get(key, {}).items()}
    return versions, frozenset(table["held_out"])


def download(versions: Mapping[str, str], root: Path) -> list[str]:
    """Download what the folders of `root` lack with pip, npm and apt-get. Returns what is not available."""
    present = {(package.name, package.version) for package in read_packages(versions, root)}
    missing = [item for item in versions.items() if item not in present]
    for name in FOLDERS.values():
        (root / name).mkdir(parents=True, exist_ok=True)
    apt = _apt_options(root / "apt") if any(name.startswith((DEBIAN, DEBIAN_SOURCE)) for name, _ in missing) else []
    pip = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    commands = {
        "": [*pip, "--only-binary=:all:", "{}=={}"],
        NPM: ["npm", "pack", "--silent", "{}@{}"],
        DEBIAN: ["apt-get", *apt, "download", "{}={}"],
        DEBIAN_SOURCE: ["apt-get", *apt, "source", "--download-only", "{}={}"],
    }

    def fetch(item: tuple[str, str]) -> int:
        name, version = item
        prefix = registry_of(name)
        *command, form = commands[prefix]
        return _run([*command, form.format(name.removeprefix(prefix), version)], root / FOLDERS[prefix])

    with ThreadPoolExecutor(NUM_DOWNLOADS) as pool:
        return [name for (name, _), code in zip(missing, pool.map(fetch, missing), strict=True) if code]


def _run(command: list[str], folder: Path) -> int:
    """The exit code of a command; 127 if it is not installed."""
    if not shutil.which(command[0]):
        return 127
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


def registry_of(name: str) -> str:
    """The prefix of a package's name; "" is PyPI."""
    return next((prefix for prefix in FOLDERS if prefix and name.startswith(prefix)), "")


def _apt_options(folder: Path) -> list[str]:
    """Options of apt-get for this machine's Debian with its source packages; the index is downloaded to `folder`."""
    sources, lists = folder / "sources", folder / "lists"
    sources.mkdir(parents=True, exist_ok=True)
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    for path in Path("/etc/apt/sources.list.d").glob("*.sources"):
        (sources / path.name).write_text(path.read_text().replace("Types: deb\n", "Types: deb deb-src\n"))
    settings = {"Etc::SourceList": "-", "Etc::SourceParts": sources, "State::Lists": lists}
    options = ["-q", *(part for key, value in settings.items() for part in ("-o", f"Dir::{key}={value}"))]
    _run(["apt-get", *options, "update"], folder)
    return options


def read_packages(versions: Mapping[str, str], root: Path) -> list[Package]:
    """The pinned packages that are in the folders of `root`."""
    packages = [wheel for wheel in read_wheels(root / "wheels") if versions.get(wheel.name) == wheel.version]
    for name, version in versions.items():
        prefix = registry_of(name)
        plain = name.removeprefix(prefix)
        pattern = {
            NPM: f"{plain.removeprefix('@').replace('/', '-')}-{version}.tgz",
            DEBIAN: f"{plain}_{version.replace(':', '%3a')}_*.deb",
            DEBIAN_SOURCE: f"{plain}_{version.rpartition(':')[2]}.dsc",
        }.get(prefix)
        paths = [path for path in (root / FOLDERS[prefix]).glob(pattern) if _is_whole(path)] if pattern else []
        packages += [Package(name, version, archive_licence(path), path) for path in paths]
    return packages


def _is_whole(path: Path) -> bool:
    return path.suffix != ".dsc" or all(archive.exists() for archive in _debian_archives(path))


def read_wheels(folder: Path) -> list[Package]:
    """Every wheel in `folder`, by file name."""
    wheels = []
    for path in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as archive:
            # a wheel may also carry the metadata of vendored packages, with longer paths
            names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1]
            metadata = archive.read(min(names, key=len)).decode("utf-8", "replace") if names else ""
        name, version = path.name.split("-")[:2]
        wheels.append(Package(name.lower().replace("_", "-"), version, stated_licence(metadata), path))
    return wheels


def standard_library() -> Package:
    """The standard library of the running interpreter."""
    return Package(STDLIB, platform.python_version(), "PSF-2.0", Path(sysconfig.get_paths()["stdlib"]))


def stated_licence(metadata: str) -> str:
    """The licence in a METADATA file: License-Expression, else the classifiers, else the first line of License."""
    headers = HeaderParser().parsestr(metadata)
    if expression := headers.get("License-Expression"):
        return str(expression).strip()
    classifiers = [str(c) for c in headers.get_all("Classifier") or []]
    licences = [c.split("::")[-1].strip() for c in classifiers if c.startswith("License ::")]
    if licences := [c for c in licences if c != "OSI Approved"]:
        return " AND ".join(licences)
    lines = [line.strip() for line in str(headers.get("License") or "").splitlines() if line.strip()]
    return lines[0][:120] if lines else ""


def archive_licence(path: Path) -> str:
    """The licence of a .tgz, .deb or .dsc by its metadata; "" if there is none that we read."""
    if path.suffix == ".tgz":
        raw = next((raw for name, raw in _tar_files(path) if name == "package.json"), b"{}")
        return npm_licence(raw.decode("utf-8", "replace").lstrip("\ufeff"))
    if path.suffix == ".dsc":
        return _licences_by_path(_debian_copyright(_debian_archives(path)))("")
    text = next((raw for name, raw in _deb_files(path) if re.fullmatch(r"usr/share/doc/[^/]+/copyright", name)), b"")
    rows = _copyright_rows(text.decode("utf-8", "replace"))
    return " AND ".join(dict.fromkeys(licence for patterns, licence in rows if patterns != ["debian/*"]))


def npm_licence(text: str) -> str:
    """The licence in a package.json: a text, or what old packages have, an object with a type, or a list of these."""
    table = json.loads(text)
    value = table.get("license") or table.get("licenses") or ""
    values = value if isinstance(value, list) else [value]
    return " AND ".join(str(item.get("type", "") if isinstance(item, dict) else item) for item in values)


def _debian_archives(path: Path) -> list[Path]:
    """The archives that a .dsc names, that of the packaging first."""
    names = set(re.findall(r"^ [0-9a-f]{32} \d+ (\S+\.tar\.\w+)$", path.read_text(), re.MULTILINE))
    return sorted((path.with_name(name) for name in names), key=lambda p: (".debian.tar" not in p.name, p.name))


def _debian_copyright(archives: list[Path]) -> str:
    raw = (raw for archive in archives for name, raw in _tar_files(archive) if name == "debian/copyright")
    return next(raw, b"").decode("utf-8", "replace")


def _copyright_rows(text: str) -> list[tuple[list[str], str]]:
    """Patterns of paths and the licence's name of each paragraph of a debian/copyright about files."""
    paragraphs = (HeaderParser().parsestr(paragraph.strip() + "\n") for paragraph in re.split(r"\n[ \t]*\n", text))
    rows = ((str(p.get("Files") or "").split(), str(p.get("License") or "").strip()) for p in paragraphs)
    return [(patterns, licence.splitlines()[0].strip()) for patterns, licence in rows if patterns and licence]


def _licences_by_path(text: str) -> Callable[[str], str]:
    """The licence of a path by a debian/copyright: the last paragraph that matches counts. "" is any other path."""
    rows = [(re.compile("|".join(map(translate, patterns))), licence) for patterns, licence in _copyright_rows(text)]
    return lambda path: next((licence for pattern, licence in reversed(rows) if pattern.match(path)), "")


def is_allowed(licence: str) -> bool:
    """True for permissive licences. False for copyleft, unknown and missing ones."""
    return bool(ALLOWED_LICENCE.search(licence)) and not REFUSED_LICENCE.search(licence)
