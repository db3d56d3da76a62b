#!/usr/bin/env python3
"""Runs the commands of docker/pod.yaml's containers beside each other, over a ring of another name:
pod_commands.py PROGRAM."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

rollring = Path(sys.argv[1]).resolve()
ring = f"pod-{os.getpid()}"
pod = (Path(__file__).parent.parent / "docker/pod.yaml").read_text(encoding="utf-8")
commands = [json.loads(found) for found in re.findall(r"^ +command: (\[.*\])$", pod, re.M)]
if len(commands) != 2:
    sys.exit(f"docker/pod.yaml has {len(commands)} commands, not 2")
environment = {**os.environ, "PATH": f"{rollring.parent}:{os.environ['PATH']}"}
try:
    started = [subprocess.Popen([word.replace("run42", ring) for word in command], env=environment)
               for command in commands]
    codes = [process.wait(timeout=100) for process in started]
finally:
    subprocess.run([rollring, "rm", "--force", ring], check=False)
sys.exit(f"the containers ended with {codes}" if any(codes) else 0)
