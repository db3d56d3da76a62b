"""Text of other processes, made harmless for a terminal."""

from __future__ import annotations

LEFT, RIGHT = "\N{MATHEMATICAL LEFT ANGLE BRACKET}", "\N{MATHEMATICAL RIGHT ANGLE BRACKET}"


def plain_text(text: str) -> str:
    """Without characters that a terminal obeys: these become their numbers."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in "\n\t" else f"{LEFT}{ord(one):04x}{RIGHT}"
        for one in text
    )


def plain_line(text: str) -> str:
    """The same on one line."""
    return plain_text(text).replace("\n", " ").replace("\t", " ")


def plain_lines(text: str) -> str:
    """The lines of a message, each of them plain."""
    return "\n".join(map(plain_line, text.split("\n")))
