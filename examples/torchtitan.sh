#!/usr/bin/env bash
# Nous' GRPO trainer takes groups from a ring and sends weights back: examples/torchtitan.sh [RING]
set -euo pipefail
fork=${ROLLRING_NOUS_TORCHTITAN:?names the folder of the fork: see docs/torchtitan.md}
ring=${1:-run42} here=$(cd "$(dirname "$0")" && pwd) place=$(mktemp -d) && cd "$place"
export PYTHONPATH=$here:$fork LOGDIR=$place WANDB_MODE=offline WANDB_SILENT=true OMP_NUM_THREADS=1
export ROLLRING_TORCHTITAN="{\"ring\": \"$ring\", \"weights\": \"channel\", \"engines\": 1,
                             \"publish_as\": \"\"}"
rollring create "$ring"
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rollring rm --force "$ring"' EXIT
python -u - "$ring" <<'PYTHON' &
import contextlib, sys, rollring as rr
import tiny_titan  # the trainer's model, made on the spot, for a run without a GPU
ring, model, step = sys.argv[1], tiny_titan.Model(), 1
with rr.Producer(ring, name="env-0") as producer:
    def roll():  # an environment, its tools and its engine: all of it runs here
        total = 0.0
        for group in range(4):
            prompt = [group, step, 7]
            for i, answer in enumerate(model.answers(prompt, 16)):
                reward = sum(token % 2 == 0 for token in answer) / len(answer)
                producer.push(f"{group}/{step}", token_ids=prompt + answer, n_prompt=len(prompt),
                              reward=reward, repetition_id=i, group_size=16)
                total += reward / 64
        print(f"step {step}: mean reward {total:.3f}")
    roll()
    with contextlib.suppress(rr.errors.PeerGoneError):  # until the trainer has ended
        for update in rr.WeightSubscriber(ring, name="env-0", timeout=600):  # one after each step
            with update:
                model.load(update.tensors())
            step += 1
            roll()
PYTHON
torchrun --nproc-per-node=2 "${here}/tiny_titan.py" --training.steps 12 --optimizer.lr 3e-3 \
    --job.config_file "$fork/torchtitan/models/llama3/train_configs/debug_model.toml" \
    --model.hf_assets_path "$fork/tests/assets/tokenizer" --metrics.enable_wandb \
    --experimental.custom_import rollring.integrations.torchtitan \
    --training.global_batch_size 64 --training.local_batch_size 32 --training.seq_len 64 \
    --training.mixed_precision_param float32 --activation_checkpoint.mode none >trainer.log 2>&1 &
wait -n && wait -n || { tail trainer.log; exit 1; } # the worker, then the trainer
