#!/usr/bin/env python3
"""embed.py IMAGE OUT.cpp: writes a C++ file whose object file carries the bytes of IMAGE.

The assembler reads IMAGE itself (.incbin): a compiler takes seconds for a megabyte of numbers.
"""
import sys
from pathlib import Path

TEXT = """// Written by embed.py: the compiled kernels, for every kind of GPU that we build for.
asm(R"(
    .pushsection .rodata, "a", @progbits
    .balign 64
    .globl rollring_kernels_image
    .hidden rollring_kernels_image
    .type rollring_kernels_image, @object
rollring_kernels_image:
    .incbin "{image}"
    .size rollring_kernels_image, . - rollring_kernels_image
    .popsection
)");
"""


def main() -> int:
    image, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    if '"' in str(image) or "\\" in str(image):
        print(f"{image}: the assembler cannot take this name", file=sys.stderr)
        return 1
    out.write_text(TEXT.format(image=image), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
