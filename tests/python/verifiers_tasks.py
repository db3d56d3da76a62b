"""An environment of verifiers: its tasks, and a program that plays them without a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["Counting", "Script"]

TURNS = {"plain": 1, "fork": 2, "long": 1, "late": 2, "refused": 2, "turns": 3}


class CountTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def length(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Counting(vf.Taskset[CountTask, vf.TasksetConfig]):
    def load(self) -> Iterable[CountTask]:
        for number in range(4):
            yield CountTask(
                vf.TaskData(id=f"count/{number}", prompt=f"count to {number}"), self.config.task
            )


class ScriptConfig(vf.HarnessConfig):
    kind: str = "plain"  # its behavior; see TURNS


class Script(vf.Harness[ScriptConfig]):
    """A chat in which the user answers each message of the model with a number."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        kind = self.config.kind
        # No time-out: the endpoint is in this process, whose imports may hold its loop for seconds.
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
        chat = [{"role": "user", "content": str(data.prompt)}]
        for turn in range(TURNS[kind]):
            if kind == "refused" and turn == 1:
                chat[-1]["content"] = "refuse"
            if kind == "long":
                chat[-1]["content"] = "long"
            said = await client.chat.completions.create(model=ctx.model, messages=chat)
            chat.append({"role": "assistant", "content": said.choices[0].message.content})
            if kind == "fork":
                for number in (1, 2):
                    forked = [*chat, {"role": "user", "content": str(number)}]
                    await client.chat.completions.create(model=ctx.model, messages=forked)
                break
            chat.append({"role": "user", "content": str(turn)})
            if kind == "late" and turn == 0:
                await asyncio.Event().wait()  # until its time is up
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
