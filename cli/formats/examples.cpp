#include "cli/formats/examples.hpp"

#include <array>

namespace rollring::cli {
namespace {

constexpr std::array examples{
    FormatExample{
        "tokens",
        "one record a line: prompt and answer as token ids, of which the first n_prompt are\n"
        "the prompt. Without repetition_id the members of a group are counted in the order\n"
        "of the file; without group_size every group must have the same number of them.\n"
        "'tokens' and 'input_ids' are other names of 'token_ids'",
        Reader::program, "",
        R"({"instance_id":"gsm8k/0","token_ids":[11,12,13,21,22],"n_prompt":3,"reward":1.0}
{"instance_id":"gsm8k/0","token_ids":[11,12,13,23],"n_prompt":3,"reward":0.0}
)"},
    FormatExample{
        "columns",
        "the same with all columns that a record may have for its tokens, and the fields of\n"
        "a trainer; 'score' is another name of 'reward'; other keys are kept in 'extra'",
        Reader::program, "",
        R"({"instance_id":"gsm8k/1","repetition_id":0,"group_size":1,"visit":0,)"
        R"("source":"math","n_prompt":2,"reward":1,"status":"completed","policy_version":7,)"
        R"("token_ids":[5,6,7],"loss_mask":[0,0,1],"logprobs":[0,0,-0.5],"advantages":[0,0,1.5],)"
        R"("ref_logprobs":[0,0,-0.6],"token_rewards":[0,0,1],"labels":[-100,-100,7],)"
        R"("messages":[{"role":"user","content":"2+3?"}],"my_own_key":"travels along"}
)"},
    FormatExample{
        "prompt",
        "prompt and answer apart: prompt_ids with completion_ids or response_ids. Columns of\n"
        "the answer alone get zeros for the prompt: logprobs, loss_mask, completion_logprobs,\n"
        "completion_mask (or response_...). Without instance_id (or example_id, prompt_id)\n"
        "records of the same prompt are a group",
        Reader::program, "",
        R"({"prompt_ids":[11,12,13],"completion_ids":[21,22],"logprobs":[-0.1,-0.2],"reward":1.0}
{"prompt_ids":[11,12,13],"completion_ids":[23],"logprobs":[-0.7],"reward":0.0}
)"},
    FormatExample{
        "list",
        "one JSON list, pretty-printed or not; records may also be pretty-printed one after\n"
        "the other",
        Reader::program, "",
        R"([
  {
    "instance_id": "gsm8k/0",
    "token_ids": [11, 12, 13, 21, 22],
    "n_prompt": 3,
    "reward": 1.0
  },
  {
    "instance_id": "gsm8k/0",
    "token_ids": [11, 12, 13, 23],
    "n_prompt": 3,
    "reward": 0.0
  }
]
)"},
    FormatExample{"atropos",
                  "a ScoredDataGroup of Atropos a line, or a list of them, or a reply of /batch",
                  Reader::program, "--format atropos",
                  R"({"tokens":[[11,12,21],[11,12,22]],"masks":[[-100,-100,21],[-100,-100,22]],)"
                  R"("scores":[1.0,0.0]}
)"},
    FormatExample{
        "messages",
        "conversations: the assistant's messages are trained on; 'prompt' and 'completion'\n"
        "as messages or as text are read, too",
        Reader::python, "--tokenizer PATH",
        R"({"messages":[{"role":"user","content":"2+3?"},)"
        R"({"role":"assistant","content":"5"}],"reward":1.0}
{"prompt":"2+3=","completion":"5","reward":1.0}
)"},
    FormatExample{
        "verl",
        "verl's dump in trainer.rollout_data_dir, one file or the whole folder. The step\n"
        "becomes the visit",
        Reader::python, "--tokenizer PATH",
        R"({"input":"2+3=","output":"5","gts":"5","score":1.0,"step":1}
{"input":"2+3=","output":"6","gts":"5","score":0.0,"step":1}
)"},
    FormatExample{"verifiers", "results.jsonl of verifiers before 0.4", Reader::python,
                  "--tokenizer PATH",
                  R"({"example_id":0,"prompt":[{"role":"user","content":"2+3?"}],"completion":)"
                  R"([{"role":"assistant","content":"5"}],"reward":1.0,"metrics":{"exact":1.0},)"
                  R"("is_completed":true,"is_truncated":false}
)"},
    FormatExample{
        "trl",
        "completions_*.parquet of TRL's log_completions (as JSON lines here); rewards are the\n"
        "columns whose name has 'reward' in it, or those of --reward NAME,NAME",
        Reader::python, "--tokenizer PATH",
        R"({"step":1,"prompt":"2+3=","completion":"5","exact_reward":1.0,"advantage":0.7}
{"step":1,"prompt":"2+3=","completion":"6","exact_reward":0.0,"advantage":-0.7}
)"},
};

}  // namespace

std::span<const FormatExample> format_examples() {
    return examples;
}

}  // namespace rollring::cli
