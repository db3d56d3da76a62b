// Goal: a key that may mean a field by another name is read, or told once.

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>

#include "cli/formats/rollring_json.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

// The reward of two records with these keys, and the remarks on them.
std::pair<std::optional<double>, std::string> told(const std::string& keys) {
    const std::string line =
        R"({"instance_id":"a","repetition_id":0,"group_size":2,"tokens":[1,2],)" + keys + "}";
    ParsedRecord record;
    KeyWatch watch;
    for (int i = 0; i < 2; i++) {
        parse_rollring(parse_json(line), Schema::standard(), record, &watch);
    }
    return {record.meta.reward, watch.text()};
}

}  // namespace

TEST_CASE("keys that may mean a field are read or told, once") {
    using Told = std::pair<std::optional<double>, std::string>;
    CHECK(told(R"("score":0.5)") == Told{0.5, "'score' is read as the reward"});
    CHECK(told(R"("score":0.5,"reward":1)") == Told{1, ""});
    CHECK(told(R"("score":0.5,"reward":null)") == Told{0.5, "'score' is read as the reward"});
    CHECK(told(R"("score":true)") ==
          Told{std::nullopt, "kept in `extra`: 'score' (did you mean 'reward'?)"});
    for (const std::string name : {"scores", "rewards", "return", "Returns", "exact_reward"}) {
        CHECK(told("\"" + name + "\":[1]") ==
              Told{std::nullopt, "kept in `extra`: '" + name + "' (did you mean 'reward'?)"});
        CHECK(told("\"reward\":1,\"" + name + "\":2") == Told{1, ""});
    }
    CHECK(told(R"("old_log_probs":[0,0],"ActionMask":[0,1],"polcy_version":3)").second ==
          "kept in `extra`: 'old_log_probs' (did you mean 'logprobs'?), "
          "'ActionMask' (did you mean 'loss_mask'?), "
          "'polcy_version' (did you mean 'policy_version'?)");
    CHECK(told(R"("logprobs":[0,0],"old_log_probs":[0,0],"attention_mask":[1,1],"stats":{},)"
               R"("advantage":0.5,"difficulty":3,"my_own_key":null)")
              .second.empty());
}
