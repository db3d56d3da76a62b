// Goal: a line of --format rollring comes out as it went in, or is refused with its reason.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "round_trip.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

std::string round_trip(std::string_view line) {
    return written(parsed(line));
}

}  // namespace

TEST_CASE("rollring json: what goes in comes out") {
    for (
        const char* line : {
            R"({"instance_id":"gsm8k/test/0","repetition_id":0,"group_size":4,"source":"6b",
                  "n_prompt":2,"reward":0,"tokens":[1,2,3]})",
            R"({"instance_id":"a","repetition_id":7,"reward":-0.1,"tokens":[]})",
            R"({"instance_id":"a","repetition_id":0,"reward":null,"source":null,
                  "tokens":[2147483647,-2147483648]})",
            R"({"instance_id":"a","repetition_id":0,"visit":0,"attempt":0,"status":"completed",
                  "n_prompt":0,"group_size":0,"last_subsequence":true,"subsequence_index":0,
                  "created_ns":0,"finished_ns":0,"policy_version":-1,"tokens":[1]})",
            R"({"instance_id":"a","repetition_id":0,"visit":18446744073709551615,
                  "attempt":4294967295,"status":"truncated","subsequence_index":65535,
                  "last_subsequence":false,"source_id":-3,"created_ns":1700000000000000001,
                  "finished_ns":5,"policy_version":12,"tokens":[1]})",
            R"({"instance_id":"a","repetition_id":0,"tokens":[1,2,3],"loss_mask":[0,1,1],
                  "logprobs":[-0.5,NaN,-Infinity],"advantages":[0.1,1e-30,3.4e38],
                  "ref_logprobs":[-0.0,0.0,1.0],"token_rewards":[0.25,1,2],"labels":[-100,2,3]})",
            R"({"instance_id":"a","repetition_id":0,"tokens":[1,2],"topk_ids":[[1,2,3],[4,5,6]],
                  "topk_logprobs":[[-1.5,-2.5,-3.5],[0.5,0.25,0.125]]})",
            R"({"instance_id":"a","repetition_id":0,"tokens":[1,2],
                  "routed_experts":[[[1,2],[3,255]],[[5,6],[7,8]]]})",
            R"({"instance_id":"a","repetition_id":0,"tokens":[1],"routed_experts":[[[1,256]]]})",
            R"({"instance_id":"a","repetition_id":0,"tokens":[1],"routed_experts":[[[-1,70000]]]})",
            R"({"instance_id":"a","repetition_id":0,"tokens":[],"routed_experts":[],
                  "topk_ids":[],"policy_version":[]})",
            R"({"instance_id":"a","repetition_id":0,"n_prompt":2,"tokens":[1,2,3,4],
                  "policy_version":[[0,3],[3,5]]})",
            R"({"instance_id":"a","repetition_id":0,"tokens":[1],"policy_version_min":3,
                  "policy_version_max":9})",
            R"({"instance_id":"a","repetition_id":0,"status":"failed"})",
            R"({"instance_id":"a","repetition_id":0,"status":"timed_out","tokens":[5],
                  "reward":NaN})",
            R"({"instance_id":"a","repetition_id":0,"tokens":[1],"messages":[{"role":"user",
                  "content":"NaN \" \\ \n ü"}],"generation_params":{"temperature":0.7,"x":NaN},
                  "overrides":{},"group_overrides":null,"images":["aGk="],"user":"u"})",
            R"({"instance_id":"a","repetition_id":0,"tokens":[1],"unknown":{"deep":[1,2.5,
                  "x",null,-Infinity]},"tags":[]})",
        }) {
        CAPTURE(line);
        const std::string out = round_trip(line);
        CAPTURE(out);
        CHECK(same_json(line, out));
        CHECK(out == round_trip(out));
    }
}

TEST_CASE("rollring json: numbers are written exactly, and as short as they can be") {
    const std::string out = round_trip(
        R"({"instance_id":"a","repetition_id":0,"reward":0.1,"tokens":[1],"logprobs":[-0.1]})");
    CHECK(out ==
          "{\"instance_id\":\"a\",\"repetition_id\":0,\"reward\":0.1,\"tokens\":[1],"
          "\"logprobs\":[-0.1]}\n");
    const auto record = parsed(R"({"instance_id":"a","repetition_id":0,"reward":1,"tokens":[]})");
    CHECK(written(record).find("\"reward\":1,") != std::string::npos);
}

TEST_CASE("rollring json: header fields") {
    const auto record = parsed(
        R"({"instance_id":"a","repetition_id":3,"group_size":8,"n_prompt":1,"reward":NaN,
                  "tokens":[1,2,3],
            "policy_version":[[0,7],[2,9]],"visit":2})");
    CHECK(record.meta.repetition_id == 3);
    CHECK(record.meta.group_size == 8);
    CHECK(record.meta.visit == 2);
    CHECK(std::isnan(record.meta.reward.value()));
    CHECK(record.meta.policy_version_min == 7);
    CHECK(record.meta.policy_version_max == 9);
    CHECK(record.meta.origin == rollring_json);
    // A run that covers only the prompt says nothing about the generated tokens.
    const auto prompt = parsed(
        R"({"instance_id":"a","repetition_id":0,"n_prompt":2,"tokens":[1,2,3],
                  "policy_version":[[0,1],[2,9]]})");
    CHECK(prompt.meta.policy_version_min == 9);
    CHECK(!parsed(R"({"instance_id":"a","repetition_id":0,"tokens":[]})").meta.reward);
}

TEST_CASE("rollring json: ids of all kinds") {
    const std::array<std::string, 4> ids{"é", "日本語/🙂", std::string(100'000, 'x'), "a\nb\"c\\d"};
    for (const auto& id : ids) {
        std::string line = "{\"instance_id\":";
        append_string(line, id);
        line += ",\"repetition_id\":0,\"tokens\":[1]}";
        const auto record = parsed(line);
        CHECK(record.text(Std::instance_id) == id);
        CHECK(same_json(line, written(record)));
    }
}

TEST_CASE("rollring json: bad lines and their reasons") {
    struct Bad {
        const char* line;
        const char* reason;
    };
    for (const Bad& bad : {
             Bad{"{", "not JSON"},
             Bad{"[1]", "not an object"},
             Bad{R"([{"tokens":[[1]]}])", "use --format atropos"},
             Bad{R"({"tokens":[[1,2],[3]],"masks":[[1,2],[3]],"scores":[1,0]})",
                 "use --format atropos"},
             Bad{R"({"tokens":[1,2],"masks":[1,2],"scores":1})", "use --format atropos"},
             Bad{R"({"batch":[{"tokens":[[1]]}]})", "use --format atropos"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"x":1,"x":2})",
                 "'x' is duplicated"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"reward":1e999})",
                 "'reward' is 1e999, which does not fit into 64 bits"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"logprobs":[-1e39]})",
                 "'logprobs' is -1e39, which does not fit into 32 bits"},
             Bad{R"({"repetition_id":0,"tokens":[]})", "'instance_id' is missing"},
             Bad{R"({"instance_id":"","repetition_id":0,"tokens":[]})", "'instance_id' is empty"},
             Bad{R"({"instance_id":5,"repetition_id":0,"tokens":[]})",
                 "'instance_id' must be a string"},
             Bad{R"({"instance_id":"a","repetition_id":0})",
                 "'token_ids' is missing: `rollring formats` shows"},
             Bad{R"({})", "'instance_id', 'token_ids' are missing: `rollring formats`"},
             Bad{R"({"prompt_ids":[1]})", "'completion_ids' is missing: `rollring formats`"},
             Bad{R"({"prompt_ids":[]})", "'instance_id', 'completion_ids' are missing: `"},
             Bad{R"({"completion_ids":[1]})", "'prompt_ids' is missing: `rollring formats`"},
             Bad{R"({"input_ids":[1,2]})",
                 "'instance_id' is missing (or 'n_prompt', which names the prompt): `rollring"},
             Bad{R"({"input_ids":[1,2],"n_prompt":3})",
                 "'n_prompt' is 3, but the record has 2 tokens"},
             Bad{R"({"prompt":"a","completion":"b"})",
                 "'token_ids' is missing: the record is text. In an environment"},
             Bad{R"({"messages":[{"role":"user"}]})", "python3 -m rollring.rollouts FILE"},
             Bad{R"({"response":[1,2,3],"score":1})",
                 "'instance_id', 'token_ids' are missing ('response' holds token ids: did you mean "
                 "'response_ids'?): `rollring formats`"},
             Bad{R"({"prompt":[1],"completion":[2]})", "did you mean 'prompt_ids'?"},
             Bad{R"({"messages":[]})", "'token_ids' are missing: `rollring formats`"},
             Bad{R"({"instance_id":"a","tokens":[1],"token_ids":[1]})",
                 "'token_ids' and 'tokens' are both present"},
             Bad{R"({"instance_id":"a","input_ids":[1],"response_ids":[1]})",
                 "'input_ids' and 'response_ids' are both present"},
             Bad{R"({"prompt_ids":[1],"completion_ids":[2,3],"n_prompt":2})",
                 "'n_prompt' is 2, but 'prompt_ids' has 1 tokens"},
             Bad{R"({"prompt_ids":[1],"completion_ids":[2,3],"completion_mask":[1]})",
                 "'completion_mask' has 1 entries for 2 generated tokens"},
             Bad{R"({"prompt_ids":[1],"completion_ids":[2,"x"]})",
                 "'completion_ids' must be an integer"},
             Bad{R"({"prompt_ids":[],"completion_ids":[2]})", "'instance_id' is missing"},
             Bad{R"({"example_id":1.5,"tokens":[2]})", "'example_id' is neither text nor"},
             Bad{R"({"instance_id":"a","repetition_id":-1,"tokens":[]})",
                 "'repetition_id' is -1, outside"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[],"group_size":-1})",
                 "'group_size' is -1, outside 0 to 65536"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[],"group_size":65537})",
                 "'group_size' is 65537, outside 0 to 65536"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[2147483648]})",
                 "'tokens' is 2147483648, outside"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1.5]})",
                 "'tokens' must be an integer"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":"x"})",
                 "'tokens' must be a list"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"n_prompt":2})",
                 "'n_prompt' is 2, but the record has 1 tokens"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"logprobs":[]})",
                 "'logprobs' has 0 entries for 1 tokens"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"loss_mask":[2]})",
                 "neither 0 nor 1"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"reward":"x"})",
                 "'reward' must be a number"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"status":"done"})",
                 "not a status"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1,2],"topk_ids":[[1],[]]})",
                 "'topk_ids' must have the same"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1,2],
                  "policy_version":[[1,1],[0,2]]})",
                 "not in order"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"policy_version":[[5,1]]})",
                 "outside the tokens"},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1],"reward":NaNa})", "not JSON"},
             Bad{"{\"instance_id\":\"\xff\",\"repetition_id\":0,\"tokens\":[1]}", "not JSON"},
         }) {
        CAPTURE(bad.line);
        const std::string reason = refusal([&] { parsed(bad.line); });
        CAPTURE(reason);
        CHECK(reason.find(bad.reason) != std::string::npos);
    }
}

TEST_CASE("rollring json: tokens by the keys of other programs") {
    const std::vector<std::int32_t> all{1, 2, 3, 4, 5};
    for (const char* line : {
             R"({"instance_id":"a","token_ids":[1,2,3,4,5],"n_prompt":3})",
             R"({"instance_id":"a","input_ids":[1,2,3,4,5],"n_prompt":3})",
             R"({"instance_id":"a","tokens":[1,2,3,4,5],"n_prompt":3,"prompt_ids":[1,2,3]})",
             R"({"instance_id":"a","prompt_ids":[1,2,3],"completion_ids":[4,5]})",
             R"({"instance_id":"a","response_ids":[4,5],"tokens":null,"prompt_ids":[1,2,3]})",
         }) {
        CAPTURE(line);
        const auto record = parsed(line);
        CHECK(std::ranges::equal(record.values<std::int32_t>(Std::token_ids), all));
        CHECK(record.meta.n_prompt == 3);
        CHECK(!record.meta.repetition_id.has_value());
        CHECK(written(parsed(written(record))) == written(record));
    }
    CHECK(parsed(R"({"instance_id":"a","repetition_id":0,"tokens":[]})").meta.repetition_id == 0U);
}

TEST_CASE("rollring json: columns of what was generated get zeros for the prompt") {
    for (const char* columns : {
             R"("logprobs":[-0.5,-0.25],"loss_mask":[1,0])",
             R"("logprobs":[0,0,-0.5,-0.25],"loss_mask":[0,0,1,0])",
             R"("completion_logprobs":[-0.5,-0.25],"completion_mask":[1,0])",
             R"("response_logprobs":[-0.5,-0.25],"response_mask":[true,false])",
         }) {
        CAPTURE(columns);
        const auto record =
            parsed(std::string(R"({"prompt_ids":[7,8],"completion_ids":[1,2],)") + columns + "}");
        CHECK(std::ranges::equal(record.values<float>(Std::logprobs),
                                 std::vector<float>{0, 0, -0.5F, -0.25F}));
        CHECK(std::ranges::equal(record.values<std::uint8_t>(Std::loss_mask),
                                 std::vector<std::uint8_t>{0, 0, 1, 0}));
    }
}

TEST_CASE("rollring json: the name of a prompt, of another key or of its tokens") {
    const auto name = [](const char* line) {
        return std::string(parsed(line).text(Std::instance_id));
    };
    CHECK(name(R"({"example_id":17,"tokens":[1]})") == "17");
    CHECK(name(R"({"prompt_id":"p/1","tokens":[1]})") == "p/1");
    CHECK(name(R"({"instance_id":"own","example_id":17,"tokens":[1]})") == "own");
    const std::string made = name(R"({"prompt_ids":[1,2],"completion_ids":[3]})");
    CHECK(made.starts_with("prompt/"));
    CHECK(made == name(R"({"tokens":[1,2,9,9],"n_prompt":2})"));
    CHECK(made != name(R"({"prompt_ids":[2,1],"completion_ids":[3]})"));
    CHECK(made != name(R"({"prompt_ids":[1,2,3],"completion_ids":[3]})"));
}
