"""A rollout worker of verifiers as a process: its own environment, its train client, our producer.

usage: verifiers_child.py RING ENGINE_URL TOKENIZER GROUPS FOLDER
It plays GROUPS tasks once in each of the ways of KINDS, a group of eight, and prints the content of
each rollout in a line. verifiers saves each episode in FOLDER.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import verifiers.v1 as vf
from renderers.configs import DefaultRendererConfig
from verifiers.v1.configs.client import ClientTimeoutConfig
from verifiers.v1.runtimes import SubprocessConfig
from verifiers.v1.utils.trace_store import append_episode

import rollring as rr
from rollring.integrations.verifiers import records

RING, URL, TOKENIZER, GROUPS, FOLDER = sys.argv[1:6]
KINDS = ("plain", "plain", "fork", "long", "late", "refused", "plain", "turns")


def digest(trace: vf.Trace) -> str:
    """Tokens that an earlier branch has, too, are trained there."""
    samples = []
    for number, one in enumerate(trace.branches):
        common = [
            len(os.path.commonprefix([one.token_ids, before.token_ids]))
            for before in trace.branches[:number]
        ]
        shared = max(common, default=0)
        mask = [False] * shared + list(one.sampled_mask[shared:])
        samples.append((one.token_ids, mask, one.logprobs))
    return hashlib.sha256(json.dumps(samples).encode()).hexdigest()


def environment(kind: str) -> vf.Env:
    config = vf.SingleAgentEnvConfig(
        taskset={"id": "verifiers_tasks"},
        agent=vf.AgentConfig(
            harness={"id": "verifiers_tasks", "kind": kind},
            runtime=SubprocessConfig(),
            timeout={"rollout": 1.0 if kind == "late" else None},
        ),
    )
    return vf.SingleAgentEnv(config)


async def rollout(
    env: vf.Env, number: int, repetition: int, producer: rr.Producer, saving: asyncio.Lock
) -> None:
    client = vf.TrainClientConfig(
        base_url=URL,
        api_key_var="NO_SUCH_KEY",
        renderer=DefaultRendererConfig(),
        renderer_model_name=TOKENIZER,
        timeout=ClientTimeoutConfig(connect=None),
    )
    task = list(env.taskset)[number]
    (slot,) = env.slots(task)
    episode = await env.run_slot(slot, vf.ModelContext(model="counting", client=client))
    for record in records(episode, group_size=len(KINDS), repetition_id=repetition):
        await producer.push_async(record.pop("instance_id"), **record)
    (trace,) = episode.traces
    for node in trace.nodes:
        node.routed_experts = None  # bytes, for which their file has no form
    await append_episode(Path(FOLDER), episode, saving)
    if trace.has_error and KINDS[repetition] not in ("late", "refused"):
        print(trace.last_error, file=sys.stderr, flush=True)
    said = {"kind": KINDS[repetition], "trace": trace.id, "digest": digest(trace)}
    print(json.dumps(said), flush=True)


async def main() -> None:
    async with AsyncExitStack() as served:
        envs = [environment(kind) for kind in KINDS]
        for env in envs:
            await served.enter_async_context(env.serving())
        with rr.Producer(RING, name="verifiers") as producer:
            saving = asyncio.Lock()
            await asyncio.gather(
                *(
                    rollout(env, number, repetition, producer, saving)
                    for number in range(int(GROUPS))
                    for repetition, env in enumerate(envs)
                )
            )


if __name__ == "__main__":
    asyncio.run(main())
