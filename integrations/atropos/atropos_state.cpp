#include "integrations/atropos/atropos_state.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "cli/formats/json_text.hpp"
#include "cli/formats/json_tree.hpp"

namespace rollring::cli {
namespace {

constexpr int format = 1;

Json trainer_json(const AtroposTrainer& trainer) {
    return {{"wandb_group", trainer.wandb_group},
            {"wandb_project", trainer.wandb_project},
            {"batch_size", trainer.batch_size},
            {"max_token_len", trainer.max_token_len},
            {"checkpoint_dir", trainer.checkpoint_dir},
            {"save_checkpoint_interval", trainer.save_checkpoint_interval},
            {"starting_step", trainer.starting_step},
            {"num_steps", trainer.num_steps}};
}

AtroposTrainer trainer_of(const Json& json) {
    const auto number = [&](const char* key) { return json[key].get<std::int64_t>(); };
    const auto text = [&](const char* key) { return json[key].get<std::string>(); };
    return {.wandb_group = text("wandb_group"),
            .wandb_project = text("wandb_project"),
            .batch_size = number("batch_size"),
            .max_token_len = number("max_token_len"),
            .checkpoint_dir = text("checkpoint_dir"),
            .save_checkpoint_interval = number("save_checkpoint_interval"),
            .starting_step = number("starting_step"),
            .num_steps = number("num_steps")};
}

Json env_json(const AtroposEnv& env) {
    return {{"max_token_length", env.max_token_length},
            {"desired_name", env.desired_name},
            {"real_name", env.real_name},
            {"weight", env.weight},
            {"group_size", env.group_size},
            {"min_batch_allocation",
             env.min_batch_allocation ? Json(*env.min_batch_allocation) : Json()},
            {"connected", env.connected}};
}

AtroposEnv env_of(const Json& json) {
    AtroposEnv env{.max_token_length = json["max_token_length"].get<std::int64_t>(),
                   .desired_name = json["desired_name"].get<std::string>(),
                   .real_name = json["real_name"].get<std::string>(),
                   .weight = json["weight"].get<double>(),
                   .group_size = json["group_size"].get<std::int64_t>()};
    const Json& share = json["min_batch_allocation"];
    if (!share.is_null()) env.min_batch_allocation = share.get<double>();
    env.connected = json["connected"] == Json(true);
    return env;
}

Json state_json(const AtroposState& state) {
    Json envs = Json::array();
    for (const AtroposEnv& env : state.envs) envs.push_back(env_json(env));
    Json receipts = Json::array();
    for (const std::string& receipt : state.receipts) {
        receipts.push_back(base64(std::as_bytes(std::span(receipt))));
    }
    return {{"format", format},
            {"ring_id", state.ring_id},
            {"trainer", state.trainer ? trainer_json(*state.trainer) : Json()},
            {"started", state.started},
            {"step", state.step},
            {"envs", std::move(envs)},
            {"receipts", std::move(receipts)}};
}

}  // namespace

std::optional<AtroposState> read_state(const std::string& path, std::uint64_t ring_id) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    if (!(text << file.rdbuf())) return std::nullopt;
    try {
        const Json json = parse_report(text.str());
        if (!json.is_object() || json["format"] != Json(format)) return std::nullopt;
        if (json["ring_id"].get<std::uint64_t>() != ring_id) return std::nullopt;
        AtroposState state{.ring_id = ring_id};
        if (!json["trainer"].is_null()) state.trainer = trainer_of(json["trainer"]);
        state.started = json["started"] == Json(true);
        state.step = json["step"].get<std::int64_t>();
        for (const Json& env : json["envs"]) state.envs.push_back(env_of(env));
        for (const Json& receipt : json["receipts"]) {
            const auto bytes = from_base64(receipt.get<std::string>());
            if (!bytes) return std::nullopt;
            state.receipts.emplace_back(reinterpret_cast<const char*>(bytes->data()),
                                        bytes->size());
        }
        return state;
    } catch (const std::runtime_error&) {
        return std::nullopt;  // truncated or foreign
    }
}

Result<void> write_state(const std::string& path, const AtroposState& state) {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder, error);
    const std::string half = fmt::format("{}.{}", path, ::getpid());
    {
        std::ofstream file(half, std::ios::binary | std::ios::trunc);
        file << state_json(state).dump() << '\n';
        if (!file.flush()) {
            return failed(Errc::system, errno, fmt::format("cannot write {}", half));
        }
    }
    std::filesystem::rename(half, path, error);
    if (error) {
        return failed(Errc::system, error.value(), fmt::format("cannot write {}", path));
    }
    return {};
}

Result<void> check_state_path(const std::string& path) {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder, error);
    const std::string probe = fmt::format("{}.{}", path, ::getpid());
    errno = 0;
    const bool written =
        static_cast<bool>(std::ofstream(probe, std::ios::binary | std::ios::trunc));
    const int number = error ? error.value() : errno;
    if (!written) {
        return failed(
            number == EACCES ? Errc::permission_denied : Errc::system, number,
            fmt::format("cannot write the state file {}; name another one with --state", path));
    }
    remove_state(probe);
    return {};
}

void remove_state(const std::string& path) {
    std::error_code error;
    std::filesystem::remove(path, error);
}

std::string default_state_path(const std::string& ring) {
    const auto from = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value != nullptr ? value : "");
    };
    std::string base = from("XDG_STATE_HOME");
    if (base.empty() && !from("HOME").empty()) base = from("HOME") + "/.local/state";
    if (base.empty()) base = "/tmp";
    return fmt::format("{}/rollring/{}.atropos.json", base, ring);
}

}  // namespace rollring::cli
