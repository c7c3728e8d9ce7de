#!/usr/bin/env python3
"""Draws the output of `vm demo` as an SVG that plays once: vm demo | recording.py TITLE FROM TO >PICTURE.

Each line is stamped with its arrival time. The recording starts with the first line that contains FROM, and ends with the
first later line that contains TO. It contains the gpu-bootstrap commands and their output, without the scripts of the test.
Waits are shortened to a second and a half."""

import html
import sys
import time

COLUMNS, ROWS = 112, 30
WIDTH, HEIGHT = 7.8, 17  # of a character, in pixels
LONGEST_WAIT = 1.5  # seconds


def recorded(lines, first, last):
    """Returns (seconds since the first line, text) for each line from `first` to `last`.

    Reads all input, because the demo continues and must be able to print."""
    kept, begin = [], None
    for line in lines:
        now = time.monotonic()
        text = line.rstrip("\n").expandtabs()
        if begin is None and first in text:
            begin = now
        if begin is not None:
            kept.append((now - begin, text))
            if last in text:
                for _ in lines:
                    pass
                return kept
    raise SystemExit(f"recording.py: no line has {first if begin is None else last!r}")


def of_program(lines):
    """Returns headings, commands and their output, as in a terminal."""
    for seconds, text in lines:
        if text.startswith("  | "):
            yield seconds, text[4:]
        elif text.startswith("  # gpu-bootstrap "):
            yield seconds, "$ " + text[4:]
        elif not text.startswith("  # "):
            yield seconds, text


def shortened(lines):
    """Returns the lines with waits of at most LONGEST_WAIT."""
    at, before, kept = 0.5, 0.0, []
    for seconds, text in lines:
        at += min(seconds - before, LONGEST_WAIT)
        before = seconds
        kept.append((at, text))
    return kept


def rows(lines):
    """Returns the lines as terminal rows: long lines are wrapped."""
    for at, text in lines:
        for start in range(0, max(len(text), 1), COLUMNS):
            yield at, text[start : start + COLUMNS]


def drawn(title, lines):
    """Returns the picture."""
    shown = list(rows(lines))
    duration = shown[-1][0] + 0.1
    width, height = COLUMNS * WIDTH + 24, ROWS * HEIGHT + 52
    # Scroll up one row for each row that no longer fits.
    steps = [(0.0, 0)] + [(at, row - ROWS + 1) for row, (at, _) in enumerate(shown) if row >= ROWS]
    scroll = "".join(f"{100 * at / duration:.2f}%{{transform:translateY({-HEIGHT * up}px)}}" for at, up in steps)
    end = f"translateY({-HEIGHT * steps[-1][1]}px)"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">'
        f"<title>{html.escape(title)}</title><style>"
        "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre}"
        f"#s{{transform:{end};animation:s {duration:.1f}s step-end}}@keyframes s{{{scroll}}}"
        ".r{animation:r step-end both}@keyframes r{from{visibility:hidden}to{visibility:visible}}"
        "@media (prefers-reduced-motion){#s,.r{animation:none}}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#20242c"/>'
        f'<text x="12" y="22" style="fill:#8a93a3">{html.escape(title)}</text>'
        f'<svg y="34" width="100%" height="{ROWS * HEIGHT + 8}"><g id="s">'
    )
    for row, (at, text) in enumerate(shown):
        if text.strip():
            yield (
                f'<text class="r" x="12" y="{(row + 1) * HEIGHT - 4}" style="animation-duration:{at:.2f}s">'
                f"{html.escape(text)}</text>"
            )
    yield "</g></svg></svg>"


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    title, first, last = sys.argv[1:]
    print("\n".join(drawn(title, shortened(of_program(recorded(sys.stdin, first, last))))))
