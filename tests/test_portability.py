"""Traps on Windows and macOS, found in the source: what exists on POSIX only, encodings left to chance, paths as strings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "src" / "bymi").rglob("*.py"))

# Attributes of modules that Windows lacks. Use is allowed where the file asks for them first (hasattr, getattr, os.name, try).
POSIX_ONLY = {
    "os": {
        *(
            "fork",
            "forkpty",
            "getuid",
            "geteuid",
            "getgid",
            "getpgid",
            "setsid",
            "killpg",
            "mkfifo",
            "nice",
            "uname",
            "getloadavg",
        ),
        *("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "sched_getaffinity", "sysconf", "wait", "chown", "fchmod"),
    },
    "signal": {
        "SIGKILL",
        "SIGHUP",
        "SIGUSR1",
        "SIGUSR2",
        "SIGALRM",
        "SIGCHLD",
        "alarm",
        "setitimer",
        "pthread_sigmask",
        "sigwait",
    },
    "socket": {"AF_UNIX"},
    "time": {"tzset", "clock_gettime"},
}
POSIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix"}
GUARDS = ("hasattr(", "os.name", "sys.platform", "AttributeError", "platform.system()")


def traps(text: str) -> list[str]:
    """Known traps in a source file, each with its line."""
    tree, lines, found = ast.parse(text), text.splitlines(), []
    for node in ast.walk(tree):
        where = f"line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if POSIX_MODULES & {name.split(".")[0] for name in names} and not _guarded(tree, node):
                found.append(f"{where}: {ast.unparse(node)} without except ImportError")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = node.value.id, node.attr
            if name in POSIX_ONLY.get(module, set()) and not any(guard in line for line in lines for guard in GUARDS):
                found.append(f"{where}: {module}.{name} without a fallback")
            if module == "os" and name in ("sep", "altsep", "linesep"):
                found.append(f"{where}: os.{name}, where pathlib and text files know it")
        if isinstance(node, ast.Call):
            found += [f"{where}: {problem}" for problem in _call(node)]
        if isinstance(node, ast.Constant) and str(node.value).startswith(("/tmp", "/dev/", "/proc/")) and not _asks(text):
            found.append(f"{where}: the path {node.value!r} without a fallback")
    return found


def _asks(text: str) -> bool:
    """Whether a file that names a path of one system also says what happens elsewhere."""
    return any(guard in text for guard in (*GUARDS, "exists()", "OSError"))


def _call(node: ast.Call) -> list[str]:
    """Calls that read or write text without saying in which encoding."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    given = {keyword.arg for keyword in node.keywords}
    if ast.unparse(node.func).startswith("os.path.") and name in ("join", "split", "splitext", "dirname", "basename"):
        return [f"os.path.{name}, where pathlib has it"]
    if name in ("read_text", "write_text") and "encoding" not in given:
        return [f"{name} without encoding"]
    if name == "open" and "encoding" not in given:
        texts = [one.value for one in (*node.args, *(k.value for k in node.keywords)) if isinstance(one, ast.Constant)]
        binary = any(isinstance(text, str) and "b" in text and len(text) <= 3 for text in texts)
        elsewhere = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        if not binary and not (elsewhere and node.func.value.id in ("os", "gzip", "opener", "pipe")):  # type: ignore[union-attr]
            return ["open without encoding"]
    return []


def _guarded(tree: ast.AST, wanted: ast.AST) -> bool:
    """Whether an import is inside a try, or under a condition."""
    return any(
        isinstance(node, ast.Try | ast.If) and any(inner is wanted for inner in ast.walk(node)) for node in ast.walk(tree)
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "src" / "bymi")))
def test_no_known_trap(path: Path) -> None:
    assert traps(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "import fcntl",
        "os.fork()",
        "signal.alarm(3)",
        "os.path.join('a', 'b')",
        "open('file')",
        "open('file', 'w')",
        "path.read_text()",
        "path.open()",
        "folder = '/tmp/bymi'",
    ],
)
def test_a_trap_is_seen(line: str) -> None:
    assert traps(f"{line}\n") != []


@pytest.mark.parametrize(
    "line",
    [
        "try:\n    import fcntl\nexcept ImportError:\n    fcntl = None",
        "if hasattr(os, 'fork'):\n    os.fork()",
        "open('file', 'rb')",
        "path.open('wb')",
        "path.read_text(encoding='utf-8')",
        "os.open(path, os.O_RDONLY)",
    ],
)
def test_what_is_fine_is_left_alone(line: str) -> None:
    assert traps(f"{line}\n") == []
