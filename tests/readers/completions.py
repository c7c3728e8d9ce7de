"""Presses Tab in interactive bash, zsh and fish with the scripts of `completions`: completions.py PROGRAM."""

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time

program = sys.argv[1]
DEADLINE = 60
# Each incomplete command line, and the word that Tab completes.
LINES = {
    "gpu-bootstrap uni": "uninstall",
    "gpu-bootstrap plan --o": "--os",
    "gpu-bootstrap uninstall --dr": "--dry-run",
    "gpu-bootstrap check --format nag": "nagios",
    "gpu-bootstrap modules ex": "export",
}
# The script for fish does not complete the values of arguments.
ARGUMENTS = {"gpu-bootstrap user-data eks-n": "eks-node-group"}
# Internal commands are not completed.
INTERNAL = ["gpu-bootstrap nvml", "gpu-bootstrap cuda", "gpu-bootstrap modules fet"]
# Ctrl-T prints the command line, and deletes it.
START = {
    "bash": "bind -x '\"\\C-t\":echo \"<$READLINE_LINE>\"; READLINE_LINE='\nsource {script}\n",
    "zsh": "show() {{ print -r -- \"<$BUFFER>\"; BUFFER= }}\nzle -N show\nbindkey '^T' show\n"
    "autoload -Uz compinit && compinit -u -D\nsource {script}\n",
}
COMMANDS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"], "fish": ["fish", "--no-config", "--command"]}


def commands(*parents):
    """The words of each visible command: the program, its commands, and the commands below them."""
    shown = subprocess.run([program, *parents, "--help"], capture_output=True, text=True, check=True, timeout=DEADLINE).stdout
    _, _, listed = shown.partition("\nCommands:\n")
    names = re.findall(r"^  ([a-z][a-z-]*)(?:  |$)", listed.split("\n\n")[0], re.MULTILINE)
    below = [words for name in names if name != "help" for words in commands(*parents, name)]
    return [list(parents), *below]


def found(shell):
    """The path of a shell."""
    path = shutil.which(shell)
    if path is None:
        raise SystemExit(f"{shell} is not installed: install the package `{shell}`")
    return path


def script_of(shell, directory):
    script = os.path.join(directory, f"completion.{shell}")
    made = subprocess.run([program, "completions", shell], capture_output=True, check=True, timeout=DEADLINE)
    with open(script, "wb") as file:
        file.write(made.stdout)
    return script


def typed(shell, script, lines):
    """The command lines of an interactive shell after Tab."""
    child, terminal = pty.fork()
    if child == 0:
        home = tempfile.gettempdir()
        os.execve(found(shell), COMMANDS[shell], {"PATH": "/usr/bin:/bin", "TERM": "xterm", "HOME": home, "LC_ALL": "C.UTF-8"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 250, 0, 0))

    def read(pattern):
        output, until = "", time.monotonic() + DEADLINE
        while not (match := re.search(pattern, output)):
            if time.monotonic() > until:
                raise SystemExit(f"{shell} did not print {pattern}:\n{output}")
            if select.select([terminal], [], [], 1)[0]:
                output += os.read(terminal, 65536).decode(errors="replace")
        return match[1]

    os.write(terminal, START[shell].format(script=script).encode())
    os.write(terminal, b"echo re''ady\n")
    read("(ready)")
    completed = []
    for line in lines:
        os.write(terminal, f"{line}\t".encode())
        # The shell reads Ctrl-T after it has completed the word.
        os.write(terminal, b"\x14")
        # zsh adds `=` to an option with a value.
        completed.append(read("<(gpu-bootstrap[^>]*)>").rstrip(" ="))
    os.close(terminal)
    os.waitpid(child, 0)
    return completed


def candidates(script, lines):
    """The candidates of fish, which prints them itself."""
    path = found("fish")
    listed = []
    for line in lines:
        command = [path, "--no-config", "--command", f"source {script}; complete --do-complete '{line}'"]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
        words = [one.split("\t")[0] for one in ended.stdout.splitlines()]
        listed.append(line.rpartition(" ")[0] + " " + (words[0] if len(words) == 1 else line.rpartition(" ")[2]))
    return listed


# After each command, its options are completed.
LINES |= {" ".join(["gpu-bootstrap", *words, "--h"]): "--help" for words in commands()}
assert {"gpu-bootstrap --h", "gpu-bootstrap lock --h", "gpu-bootstrap bundle verify --h"} < set(LINES), LINES

with tempfile.TemporaryDirectory() as directory:
    for shell in ("bash", "zsh", "fish"):
        script = script_of(shell, directory)
        complete = LINES if shell == "fish" else LINES | ARGUMENTS
        lines = [*complete, *INTERNAL]
        completed = candidates(script, lines) if shell == "fish" else typed(shell, script, lines)
        wanted = [line.rpartition(" ")[0] + " " + word for line, word in complete.items()] + INTERNAL
        assert completed == wanted, f"{shell}: {completed} instead of {wanted}"
        print(f"{shell} completes {len(complete)} command lines")
