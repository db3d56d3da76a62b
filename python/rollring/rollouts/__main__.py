"""``python -m rollring.rollouts FILE``: any format as JSON lines for `rollring produce`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from ..errors import RollringError
from ._read import Rollouts

PROGRAM = "python3 -m rollring.rollouts"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Print rollouts of any format as JSON lines with token ids.",
        epilog=f"Example: {PROGRAM} dump/ --tokenizer model/ | rollring produce run42 --input -",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="FILE", help="a file, a folder of files, or - (stdin)")
    parser.add_argument("--tokenizer", metavar="PATH", help="of transformers, for text")
    parser.add_argument("--group-size", metavar="N", type=int, help="of records that lack it")
    parser.add_argument(
        "--reward",
        metavar="KEY[,KEY]",
        default="",
        help="keys whose sum is the reward of text without one (default: score, or all keys with "
        "'reward' in their name)",
    )
    options = parser.parse_args()
    rewards = [key for key in options.reward.split(",") if key]
    try:
        rollouts = Rollouts(
            options.path, options.tokenizer, group_size=options.group_size, rewards=rewards
        )
        if rollouts.remark:
            sys.stderr.write(f"rollring: {rollouts.remark}\n")
        for fields in rollouts:
            for _, remark in rollouts.remarks():
                sys.stderr.write(f"rollring: {remark}\n")
            extra = fields.pop("extra", {})
            line = fields | {key: value for key, value in extra.items() if key not in fields}
            print(json.dumps(line, separators=(",", ":"), default=_plain))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except RollringError as error:
        sys.stderr.write(f"rollring: {error.code}: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"rollring: system: {error}\n")
        return 1
    return 0


def _plain(value: Any) -> Any:
    """Types that Parquet and datasets have beside JSON's."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


if __name__ == "__main__":
    sys.exit(main())
