"""TRL's GRPOTrainer with two rollout workers, on any machine: python trl_grpo.py [RING]"""
import multiprocessing
import sys
import rollring as rr
from datasets import Dataset
from rollring.integrations.trl import answer_prompts, rollout_func
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

RING = (sys.argv[1:] or ["run42"])[0]
words = {word: i for i, word in enumerate(["<pad>", "<eos>", *"0123456789+="])}
tokens = Tokenizer(models.WordLevel(words, unk_token="<pad>"))  # one token a character
tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>")
model = AutoModelForCausalLM.from_config(Qwen2Config(  # a random one; yours: from_pretrained()
    vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1))

def rollout(prompt, count):  # an engine, a tool loop, an environment: all of it runs here
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = model.generate(ids.repeat(count, 1), do_sample=True, max_new_tokens=12)
    texts = [row[:(row + [1]).index(1) + 1] for row in made[:, ids.shape[1]:].tolist()]
    return [{"prompt_ids": ids[0].tolist(), "completion_ids": text,
             "reward": sum(1 < token < 7 for token in text) / 12} for text in texts]

def work(name):  # any process, in any number; it takes over the trainer's weights as they come
    answer_prompts(RING, rollout, dict(model.named_parameters()), name=name)

def workers_reward(reward, **_):  # or any reward function of yours, in the trainer
    return reward

if __name__ == "__main__":
    from trl import GRPOConfig, GRPOTrainer
    for name in ("env-0", "env-1"):
        multiprocessing.get_context("spawn").Process(target=work, args=(name,), daemon=True).start()
    config = GRPOConfig("run", max_steps=20, learning_rate=5e-3, logging_steps=1, bf16=False)
    prompts = Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(9) for b in range(9)]})
    GRPOTrainer(model, args=config, reward_funcs=workers_reward, train_dataset=prompts,
                processing_class=tokenizer, rollout_func=rollout_func(RING, engines=2)).train()
    rr.remove(RING, force=True)
