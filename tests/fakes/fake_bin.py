"""The fake's tools as programs on PATH, for code that runs commands as separate processes."""

from __future__ import annotations

import json
import os
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fakes.fake_tools import FakeRunner

TOOLS = ("squeue", "scontrol", "scancel", "sbatch", "sinfo", "sshare")
# With -S and -E the interpreter starts in some milliseconds.
_PROGRAM = """#!{python} -SE
import json, os, socket, sys
stdin = "" if len(sys.argv) > 1 or os.path.basename(sys.argv[0]) != "scontrol" else sys.stdin.read()
with socket.socket(socket.AF_UNIX) as there:
    there.connect({path!r})
    asked = [[os.path.basename(sys.argv[0]), *sys.argv[1:]], stdin]
    there.sendall(json.dumps(asked).encode() + b"\\n")
    status, out, err = json.loads(there.makefile("rb").readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(status)
"""


class _Served(socketserver.StreamRequestHandler):
    """Handles one command."""

    def handle(self) -> None:
        """Run the command and send back its status and output."""
        argv, stdin = json.loads(self.rfile.readline())
        done = self.server.runner._done(argv, stdin)  # type: ignore[attr-defined]
        answer = [done.returncode, done.stdout, done.stderr]
        self.wfile.write(json.dumps(answer).encode() + b"\n")


@contextmanager
def on_path(runner: FakeRunner, directory: Path) -> Iterator[str]:
    """Serve the tools from `directory`, a short path, and give a PATH that begins with it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "socket"
    for tool in TOOLS:
        program = directory / tool
        program.write_text(_PROGRAM.format(python=sys.executable, path=str(path)))
        program.chmod(0o755)
    with socketserver.UnixStreamServer(str(path), _Served) as server:
        server.runner = runner  # type: ignore[attr-defined]
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield f"{directory}{os.pathsep}{os.environ['PATH']}"
        finally:
            server.shutdown()
            serving.join()
