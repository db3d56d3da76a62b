#!/usr/bin/env bash
# A trainer reads the groups of an Atropos environment from a ring: examples/atropos.sh [RING]
set -euo pipefail; python -c 'import atroposlib, rollring' # or it ends here
ring=${1:-run42} url=http://127.0.0.1:${PORT:-8000} place=$(mktemp -d)
cd "$place" && cat >sums.py <<'PYTHON'
import random
from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.server_handling.server_baseline import ServerBaseline
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({str(i): i for i in range(20)}, unk_token="0"))
PreTrainedTokenizerFast(tokenizer_object=words, unk_token="0").save_pretrained("words")
class Sums(BaseEnv):  # asks for the sum of two digits; chance answers instead of a model
    @classmethod
    def config_init(cls):
        own = {"tokenizer_name": "words", "group_size": 4, "wandb_name": "sums"}
        return BaseEnvConfig(**own), ServerBaseline()
    async def setup(self): ...
    async def evaluate(self, *args, **kwargs): ...
    async def get_next_item(self): return random.randrange(10), random.randrange(10)
    async def collect_trajectories(self, item):
        answers = [random.randrange(20) for _ in range(self.config.group_size)]
        return {"tokens": [[*item, answer] for answer in answers],
                "masks": [[-100, -100, answer] for answer in answers],
                "scores": [-abs(answer - sum(item)) / 20 for answer in answers]}, []
PYTHON
rollring serve-atropos "$ring" --port "${url##*:}" --state "$place/state" &
trap 'kill $(jobs -p) || true; wait; rollring rm --force "$ring"' EXIT
curl --silent --fail --retry 60 --retry-connrefused --retry-delay 1 "$url/register" --data '{
    "wandb_group": "", "wandb_project": "", "batch_size": 16, "max_token_len": 64, "num_steps": 99,
    "checkpoint_dir": "", "save_checkpoint_interval": 0, "starting_step": 0}'
rollring run-env sums:Sums serve --env.rollout_server_url "$url" --env.use_wandb false \
    --slurm false --openai.base_url "$url" --openai.api_key x --openai.model_name none &
python - "$ring" <<'PYTHON'
import sys, rollring as rr
with rr.Stash(sys.argv[1], batch_groups=4, group_size=4) as stash:
    for step in range(5):
        with stash.next(timeout=120) as batch:
            print(f"step {step}: {len(batch.sequences)} answers, best {max(batch.rewards):.2f}")
PYTHON
