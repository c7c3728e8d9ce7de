#!/usr/bin/env python3
"""Records `vm demo` as an SVG that plays once: recording.py TITLE COMMAND… >PICTURE.

Runs the command in a terminal, so that `install` draws its progress bars as for a user. The recording contains the steps of
SECTIONS: the gpu-bootstrap command and its screen, without the scripts of the test. `plan` is shown in two pages. The time of
`install` is scaled to at most LONGEST seconds."""

import bisect
import fcntl
import glob
import html
import os
import pty
import re
import struct
import sys
import termios
import time

# The package archives of the machine that records, as apt is configured. The recording contains a name of the same length.
SOURCES = ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*")]
ARCHIVE = re.compile(rb"\bhttps?://(?:[^/@\s]*@)?([^/:\s]+)")

COLUMNS, ROWS = 112, 30
WIDTH, HEIGHT = 7.8, 17  # of a character, in pixels
PAGE = 4.0  # seconds for which a page of output is shown
LONGEST = 12.0  # seconds
FRAME = 0.25  # the shortest time between two frames, in seconds

# The recorded steps of the demo, each with the caption that replaces its command, and the first line that is shown. The
# resumed run writes a log to the journal, and only its result is shown.
SECTIONS = [
    ("plan shows the branch", None, None),
    ("install --image", None, None),
    ("the resume unit continues automatically", "# first boot of the image, GPU and driver are simulated", "ready: "),
]

CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b.|[\r\n\b\t]|[^\x1b\r\n\b\t]+", re.DOTALL)
CLASSES = {"1": "b", "2": "f", "31": "red", "32": "green", "33": "yellow", "36": "cyan"}


class Terminal:
    """The screen of a terminal: rows of (character, set of classes)."""

    def __init__(self):
        self.rows = [[] for _ in range(ROWS)]
        self.row = self.column = 0
        self.classes = frozenset()

    def feed(self, text):
        for match in CONTROL.finditer(text):
            part = match[0]
            if match[2]:
                self.control(match[1], match[2])
            elif part == "\r":
                self.column = 0
            elif part == "\n":
                self.line_feed()
            elif part == "\b":
                self.column = max(self.column - 1, 0)
            elif part == "\t":
                self.column = min(self.column // 8 * 8 + 8, COLUMNS - 1)
            elif part[0] != "\x1b":
                for character in part:
                    if character >= " ":
                        self.put(character)

    def put(self, character):
        # A terminal wraps when the next character does not fit, not when the line is full.
        if self.column == COLUMNS:
            self.column = 0
            self.line_feed()
        row = self.rows[self.row]
        row.extend([(" ", frozenset())] * (self.column + 1 - len(row)))
        row[self.column] = (character, self.classes)
        self.column += 1

    def line_feed(self):
        if self.row == ROWS - 1:
            self.rows = self.rows[1:] + [[]]
        else:
            self.row += 1

    def control(self, arguments, final):
        values = [int(value or 0) for value in arguments.strip("?").split(";")]
        count = max(values[0], 1)
        if final == "A":
            self.row = max(self.row - count, 0)
        elif final == "B":
            self.row = min(self.row + count, ROWS - 1)
        elif final == "C":
            self.column = min(self.column + count, COLUMNS - 1)
        elif final == "D":
            self.column = max(min(self.column, COLUMNS - 1) - count, 0)
        elif final == "G":
            self.column = min(count, COLUMNS) - 1
        elif final == "K":
            row = self.rows[self.row]
            if values[0] == 2:
                row.clear()
            elif values[0] == 0:
                del row[self.column :]
        elif final == "J" and values[0] == 0:
            del self.rows[self.row][self.column :]
            for row in self.rows[self.row + 1 :]:
                row.clear()
        elif final == "m":
            for value in arguments.split(";"):
                if value in ("", "0"):
                    self.classes = frozenset()
                elif value in CLASSES:
                    self.classes = self.classes | {CLASSES[value]}

    def shown(self):
        """Returns each row as a tuple of (text, classes)."""
        screen = []
        for row in self.rows:
            runs = []
            for character, classes in row:
                if runs and runs[-1][1] == classes:
                    runs[-1][0].append(character)
                else:
                    runs.append(([character], classes))
            screen.append(tuple(("".join(text), classes) for text, classes in runs))
        return screen


def without_archives(output):
    """Replaces the host names of the package archives. The length of the output and the times of its parts stay the same."""
    for path in filter(os.path.isfile, SOURCES):
        with open(path, "rb") as file:
            for host in ARCHIVE.findall(file.read()):
                name = (b"mirror" * len(host))[: max(len(host) - 8, 0)] + b".example"[-len(host) :]
                output = output.replace(host, name)
    return output


class Recording:
    """The output of a command with the time of each part."""

    def __init__(self, command):
        process, terminal = pty.fork()
        if process == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp(command[0], command)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        parts, self.offsets, self.times, length = [], [], [], 0
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # The command has closed the terminal.
                break
            if not part:
                break
            self.offsets.append(length)
            self.times.append(time.monotonic())
            parts.append(part)
            length += len(part)
        self.output = without_archives(b"".join(parts))
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status != 0:
            sys.stderr.buffer.write(self.output[-4000:])
            raise SystemExit(f"recording.py: {command[0]} exited with {status}")

    def time(self, offset):
        return self.times[bisect.bisect_right(self.offsets, offset) - 1]

    def section(self, title):
        """Returns the start and the end of the output of a step."""
        start = re.search(rb"^== " + re.escape(title.encode()) + rb"\r?\n", self.output, re.MULTILINE)
        if not start:
            raise SystemExit(f"recording.py: the demo has no step `{title}`")
        end = re.compile(rb"\r?\n== ").search(self.output, start.end())
        return start.end(), end.start() if end else len(self.output)

    def parts(self, start, end):
        """Returns (seconds since `start`, text) for each part of the output, as it arrived."""
        bounds = [offset for offset in self.offsets if start < offset < end]
        first = self.time(start)
        for at, to in zip([start, *bounds], [*bounds, end]):
            yield self.time(at) - first, self.output[at:to].decode(errors="replace")


def frames(recording):
    """Yields (seconds, screen). Each step starts on an empty screen."""
    now = 0.0
    for title, caption, first in SECTIONS:
        start, end = recording.section(title)
        commands = re.compile(rb"(?:  # [^\r\n]*\r?\n)*").match(recording.output, start, end)
        command = caption or "$ " + commands[0].decode().split("\n")[0].strip().removeprefix("# ")
        terminal = Terminal()
        terminal.feed(f"\x1b[1m{command}\x1b[0m\r\n")
        yield now, terminal.shown()
        now += 0.8
        start = commands.end()
        body = recording.output[start:end].decode(errors="replace")
        if first is None and not body.startswith("  | "):
            parts = list(recording.parts(start, end))
            speed = max(parts[-1][0] / LONGEST, 1.0)
            before = -FRAME
            for seconds, text in parts:
                terminal.feed(text)
                if seconds / speed - before >= FRAME:
                    before = seconds / speed
                    yield now + before, terminal.shown()
            now += parts[-1][0] / speed + FRAME
        else:
            lines = [line.removeprefix("  | ") for line in body.replace("\r", "").rstrip().split("\n")]
            begin = next((n for n, line in enumerate(lines) if line.startswith(first or "")), None)
            if begin is None:
                raise SystemExit(f"recording.py: no line of `{title}` starts with `{first}`")
            lines = lines[begin:]
            if len(lines) > ROWS - 2:
                terminal.feed("\r\n".join(lines[: ROWS - 2]))
                yield now, terminal.shown()
                now += PAGE
                terminal.feed("\r\n")
                lines = lines[ROWS - 2 :]
            terminal.feed("\r\n".join(lines))
        yield now, terminal.shown()
        now += PAGE


def drawn(title, shown):
    """Returns the picture: each text of a row, with the time when it appears and the time when it disappears."""
    shown = list(shown)
    pieces = []
    since = [(0.0, ())] * ROWS
    for at, screen in shown:
        for number, row in enumerate(screen):
            begin, before = since[number]
            if row != before:
                pieces.append((number, before, begin, at))
                since[number] = (at, row)
    pieces.extend((number, row, begin, None) for number, (begin, row) in enumerate(since))

    width, height = COLUMNS * WIDTH + 24, ROWS * HEIGHT + 52
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">'
        f"<title>{html.escape(title)}</title><style>"
        "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre}"
        ".b{font-weight:bold}.f{fill:#8a93a3}.red{fill:#e06c75}.green{fill:#98c379}.yellow{fill:#e5c07b}.cyan{fill:#56b6c2}"
        # The two times of a text need two properties, because the second animation would replace the first.
        "@keyframes r{from{visibility:hidden}to{visibility:visible}}@keyframes h{from{opacity:1}to{opacity:0}}"
        ".r,.t{animation:r step-end both}.t{animation-name:r,h}"
        "@media (prefers-reduced-motion){.r{animation:none}.t{display:none}}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#20242c"/>'
        f'<text x="12" y="22" class="f">{html.escape(title)}</text>'
    )
    for number, row, begin, end in sorted(pieces, key=lambda piece: (piece[2], piece[0])):
        text = "".join(
            f'<tspan class="{" ".join(sorted(classes))}">{html.escape(run)}</tspan>' if classes else html.escape(run)
            for run, classes in row
        )
        if not "".join(run for run, _ in row).strip():
            continue
        times = f"{begin:.2f}s" if end is None else f"{begin:.2f}s,{end:.2f}s"
        kind = "r" if end is None else "t"
        yield (
            f'<text class="{kind}" x="12" y="{34 + (number + 1) * HEIGHT - 4}" style="animation-duration:{times}">'
            f"{text}</text>"
        )
    yield "</svg>"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    print("\n".join(drawn(sys.argv[1], frames(Recording(sys.argv[2:])))))
