"""A random Qwen2 of 44 tokens, made on the spot: the examples need no network, no server, no GPU.

With a real model nothing of this file is needed: an engine such as vLLM takes the place of `roll`.
"""
import os
import tempfile

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  TRL_EXPERIMENTAL_SILENCE="1")
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config

CHARACTERS = "0123456789+=?. abcdefghijklmnopqrstuvwxyz"
CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
PAD, EOS, FIRST = 0, 1, 3  # FIRST is the token of "0"
PROMPTS = Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(9) for b in range(9)]})
TRAINING = {"use_cpu": True, "bf16": False, "report_to": "none", "logging_steps": 1,
            "save_strategy": "no", "learning_rate": 5e-3, "disable_tqdm": True,
            "per_device_train_batch_size": 16}  # of transformers
torch.set_num_threads(1)
torch.cuda.get_device_name = lambda *_: "cpu"  # those trainers ask for it without a GPU, too


def save() -> str:
    """The folder of the model and its tokenizer, one token a character."""
    folder = tempfile.mkdtemp(prefix="rollring-example-")
    words = ["<pad>", "<eos>", "<unk>", *CHARACTERS]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        padding_side="left", chat_template=CHAT)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        pad_token_id=PAD, eos_token_id=EOS, bos_token_id=None, tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def load(folder):
    """The model and its tokenizer, in the process of a rollout worker."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def roll(model, tokenizer, prompt, count, new_tokens=12):
    """As many completions of a prompt: its IDs, and of each the IDs and their log-probabilities."""
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = model.generate(ids.repeat(count, 1), do_sample=True, max_new_tokens=new_tokens,
                          output_logits=True, return_dict_in_generate=True)
    logprobs = torch.stack(made.logits, 1).float().log_softmax(-1)
    answers = []
    for row, new in zip(logprobs, made.sequences[:, ids.shape[1]:].tolist(), strict=True):
        new = new[:new.index(EOS) + 1] if EOS in new else new
        answers.append((new, [float(row[i, token]) for i, token in enumerate(new)]))
    return ids[0].tolist(), answers


def digits(ids) -> float:
    """A reward: the share of digits."""
    return sum(FIRST <= token < FIRST + 10 for token in ids) / len(ids)


def tree_attention(module, query, key, value, mask, *, tree_kv_index, tree_cu_seqlens_q,
                   tree_cu_seqlens_k, scaling=None, **_):
    """On a CPU: the attention for which TRL's asynchronous trainers load a kernel of a GPU."""
    query, key, value = query[0], key[0], value[0]
    queries, keys = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    parts = []
    for i in range(len(queries) - 1):
        rows, path = slice(queries[i], queries[i + 1]), tree_kv_index[keys[i]:keys[i + 1]]
        k, v = (each[:, path].repeat_interleave(query.shape[0] // key.shape[0], 0)[None]
                for each in (key, value))
        seen = torch.ones(queries[i + 1] - queries[i], len(path), dtype=torch.bool)
        parts.append(torch.nn.functional.scaled_dot_product_attention(
            query[None, :, rows], k, v, attn_mask=seen.tril(len(path) - len(seen)),
            scale=scaling)[0])
    return torch.cat(parts, 1).transpose(0, 1)[None], None


def trl_on_cpu(trainer):
    """An asynchronous trainer of TRL, which has registered its own kernel when it was made."""
    from transformers import AttentionInterface

    AttentionInterface.register("tree_fa3", tree_attention)
    return trainer
