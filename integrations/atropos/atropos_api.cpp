#include "integrations/atropos/atropos_api.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/formats/json_tree.hpp"
#include "cli/formats/json_values.hpp"

namespace rollring::cli {
namespace {

HttpAnswer say(const Json& json, int status = 200) {
    return {.status = status, .body = json.dump()};
}

// In the form of FastAPI's answer to a body that does not fit its model.
HttpAnswer refuse(int status, const std::string& why) {
    Json detail = Json::array();
    Json where = Json::array();
    where.push_back("body");
    detail.push_back({{"type", "value_error"}, {"loc", std::move(where)}, {"msg", why}});
    return say({{"detail", std::move(detail)}}, status);
}

// The keys of a body. Throws BadRecord, naming the key, if one is missing or of another kind.
class Fields {
  public:
    explicit Fields(const std::string& body) {
        const JsonValue value = parse_json(body);
        if (!value.is_object()) throw BadRecord("the body must be an object");
        fields_ = members(value);
    }

    // Null if the key is missing.
    [[nodiscard]] JsonValue find(std::string_view key) const {
        const auto found = std::ranges::find(fields_, key, &JsonMember::key);
        return found == fields_.end() ? JsonValue() : found->value;
    }
    [[nodiscard]] std::string text(std::string_view key) const { return string(key, must(key)); }
    // Also accepts a number with a point if nothing is behind it.
    [[nodiscard]] std::int64_t whole(std::string_view key) const {
        const JsonValue value = must(key);
        if (value.is_integer() || !value.is_number()) return integer<std::int64_t>(key, value);
        const double number = real<double>(key, value);
        constexpr double most = 9e15;
        if (number != std::floor(number) || std::abs(number) > most) bad(key, "must be an integer");
        return static_cast<std::int64_t>(number);
    }
    [[nodiscard]] double number(std::string_view key) const { return real<double>(key, must(key)); }

  private:
    [[nodiscard]] JsonValue must(std::string_view key) const {
        const JsonValue value = find(key);
        if (value.is_null()) bad(key, "is missing");
        return value;
    }
    std::vector<JsonMember> fields_;
};

// Checks the demands of Atropos' model beyond those of a group.
void check_group(JsonValue group) {
    if (!group.is_object()) throw BadRecord("a group must be an object");
    const auto fields = members(group);
    const auto find = [&](std::string_view key) {
        const auto found = std::ranges::find(fields, key, &JsonMember::key);
        return found == fields.end() ? JsonValue() : found->value;
    };
    for (const std::string_view key : {"tokens", "masks", "scores"}) {
        if (!find(key).is_array()) bad(key, "is missing, or is not a list");
        const std::size_t entries = find(key).count();
        const std::size_t members = find("tokens").count();
        if (entries != members) {
            bad(key, fmt::format("has {} entries for {} members", entries, members));
        }
    }
    for (const JsonValue tokens : find("tokens").elements()) {
        if (!tokens.is_array()) bad("tokens", "must be a list of lists, one for each member");
    }
    const JsonValue messages = find("messages");
    if (messages.is_null()) return;
    if (!messages.is_array()) bad("messages", "must be a list of lists");
    for (const JsonValue conversation : messages.elements()) {
        if (!conversation.is_array()) bad("messages", "must be a list of lists");
        for (const JsonValue message : conversation.elements()) {
            if (!message.is_object()) bad("messages", "must hold objects");
            const auto keys = members(message);
            for (const std::string_view key : {"role", "content"}) {
                if (std::ranges::find(keys, key, &JsonMember::key) == keys.end()) {
                    bad("messages", "Message must have 'role' and 'content' fields");
                }
            }
        }
    }
}

// A group in the form of their answers: each of their keys, null if it was not given.
std::string with_all_keys(const Fields& group) {
    std::string text;
    for (const std::string_view key :
         {"tokens", "masks", "scores", "advantages", "ref_logprobs", "messages",
          "generation_params", "inference_logprobs", "overrides", "group_overrides", "images",
          "env_id", "distill_token_ids", "distill_logprobs"}) {
        text += fmt::format("{}\"{}\":", text.empty() ? '{' : ',', key);
        append_compact(text, group.find(key));
    }
    return text += '}';
}

// The answer to the sender of a post that was not received.
HttpAnswer not_received(const AtroposHub::Posted& posted, const std::optional<std::string>& stuck) {
    switch (posted.sent) {
        case LaneSend::too_large:
            return refuse(413, posted.problem);
        case LaneSend::bad_record:
            return refuse(422, posted.problem);
        case LaneSend::closed:
            return refuse(503, "the ring is gone: " + posted.problem);
        default:
            break;
    }
    return refuse(503,
                  "the ring is full: send the group again after the trainer has taken some groups" +
                      (stuck ? "; " + *stuck : ""));
}

}  // namespace

struct AtroposApi::Route {
    std::string_view method;
    std::string_view path;
    HttpAnswer (AtroposApi::*answer)(const HttpRequest& request);
};

const AtroposApi::Route* AtroposApi::find(const HttpRequest& request, bool& other_method) {
    using Api = AtroposApi;
    static constexpr std::array routes{
        Route{"GET", "/", &Api::root},
        Route{"POST", "/register", &Api::register_trainer},
        Route{"POST", "/register-env", &Api::register_env},
        Route{"POST", "/disconnect-env", &Api::disconnect_env},
        Route{"GET", "/wandb_info", &Api::wandb_info},
        Route{"GET", "/info", &Api::info},
        Route{"GET", "/batch", &Api::batch},
        Route{"GET", "/latest_example", &Api::latest_example},
        Route{"POST", "/scored_data", &Api::scored_data},
        Route{"POST", "/scored_data_list", &Api::scored_data_list},
        Route{"GET", "/status", &Api::status},
        Route{"GET", "/status-env", &Api::status_env},
        Route{"GET", "/reset_data", &Api::reset_data},
        Route{"GET", "/rollring", &Api::rollring},  // not theirs: for producers on the ring
    };
    const auto found = std::ranges::find(routes, request.path, &Route::path);
    other_method = found != routes.end() && found->method != request.method;
    return found == routes.end() ? nullptr : &*found;
}

HttpAnswer AtroposApi::answer(const HttpRequest& request) {
    bool other_method = false;
    const Route* route = find(request, other_method);
    if (route == nullptr) return say({{"detail", "Not Found"}}, 404);
    if (other_method) return say({{"detail", "Method Not Allowed"}}, 405);
    try {
        return (this->*route->answer)(request);
    } catch (const BadRecord& error) {
        return refuse(422, error.what());
    }
}

HttpAnswer AtroposApi::root(const HttpRequest&) {
    return say({{"message", "AtroposLib API"}});
}

HttpAnswer AtroposApi::rollring(const HttpRequest&) {
    return say({{"ring", hub_->ring()}});
}

HttpAnswer AtroposApi::register_trainer(const HttpRequest& request) {
    const Fields body(request.body);
    const AtroposTrainer trainer{.wandb_group = body.text("wandb_group"),
                                 .wandb_project = body.text("wandb_project"),
                                 .batch_size = body.whole("batch_size"),
                                 .max_token_len = body.whole("max_token_len"),
                                 .checkpoint_dir = body.text("checkpoint_dir"),
                                 .save_checkpoint_interval = body.whole("save_checkpoint_interval"),
                                 .starting_step = body.whole("starting_step"),
                                 .num_steps = body.whole("num_steps")};
    hub_->register_trainer(trainer);
    return say({{"uuid", hub_->next_id()}});
}

HttpAnswer AtroposApi::register_env(const HttpRequest& request) {
    const Fields body(request.body);
    AtroposEnv env{.max_token_length = body.whole("max_token_length"),
                   .desired_name = body.text("desired_name"),
                   .weight = body.number("weight"),
                   .group_size = body.whole("group_size")};
    const JsonValue share = body.find("min_batch_allocation");
    if (!share.is_null()) env.min_batch_allocation = real<double>("min_batch_allocation", share);
    if (env.group_size < 1) bad("group_size", "must be at least 1");
    return hub_->with_book(
        [&](AtroposBook& book) {
            if (!book.started() && !hub_->read_by_another()) {
                return say({{"status", "wait for trainer to start"}});
            }
            const std::int64_t id = book.enter_env(std::move(env));
            const AtroposTrainer trainer = book.trainer().value_or(AtroposTrainer());
            return say({{"status", "success"},
                        {"env_id", id},
                        {"wandb_name", book.envs().back().real_name},
                        {"checkpoint_dir", trainer.checkpoint_dir},
                        {"starting_step", book.step()},
                        {"checkpoint_interval", trainer.save_checkpoint_interval},
                        {"num_steps", trainer.num_steps}});
        },
        true);
}

HttpAnswer AtroposApi::disconnect_env(const HttpRequest& request) {
    const std::int64_t id = Fields(request.body).whole("env_id");
    const bool known =
        hub_->with_book([&](AtroposBook& book) { return book.disconnect(id); }, true);
    if (known) return say({{"status", "success"}});
    return say({{"status", "failure"}, {"error", "unknown environment"}});
}

HttpAnswer AtroposApi::wandb_info(const HttpRequest&) {
    return hub_->with_book(
        [](AtroposBook& book) {
            if (!book.trainer()) return say({{"group", nullptr}, {"project", nullptr}});
            return say({{"group", book.trainer()->wandb_group},
                        {"project", book.trainer()->wandb_project}});
        },
        false);
}

HttpAnswer AtroposApi::info(const HttpRequest&) {
    return hub_->with_book(
        [](AtroposBook& book) {
            const AtroposTrainer trainer = book.trainer().value_or(AtroposTrainer());
            return say(
                {{"batch_size", trainer.batch_size}, {"max_token_len", trainer.max_token_len}});
        },
        false);
}

HttpAnswer AtroposApi::batch(const HttpRequest&) {
    const bool registered =
        hub_->with_book([](AtroposBook& book) { return book.trainer().has_value(); }, false);
    if (!registered) {
        return say({{"status", "error"},
                    {"message", "Trainer not registered. Call /register first."},
                    {"batch", Json::array()}});
    }
    AtroposHub::Handed handed = hub_->next_batch();
    if (!handed.problem.empty()) return refuse(503, handed.problem);
    HttpAnswer answer;
    answer.body = "{\"batch\":" + handed.groups.value_or("null") + "}";
    answer.done = std::move(handed.delivered);
    return answer;
}

HttpAnswer AtroposApi::latest_example(const HttpRequest&) {
    std::string latest;
    {
        const std::scoped_lock lock(latest_mutex_);
        latest = latest_;
    }
    if (!latest.empty()) return {.body = with_all_keys(Fields(latest))};
    Json none = Json::object();
    for (const char* key : {"tokens", "masks", "scores", "advantages", "ref_logprobs",
                            "generation_params", "inference_logprobs", "messages", "images"}) {
        none[key] = Json::array();
    }
    return say(none);
}

HttpAnswer AtroposApi::scored_data(const HttpRequest& request) {
    return send(request, false);
}

HttpAnswer AtroposApi::scored_data_list(const HttpRequest& request) {
    return send(request, true);
}

std::size_t AtroposApi::taken_of(const GroupKey& body) {
    const std::scoped_lock lock(begun_mutex_);
    const auto found = std::ranges::find(begun_, body, &Begun::body);
    if (found == begun_.end()) return 0;
    const std::size_t taken = found->taken;
    begun_.erase(found);
    return taken;
}

void AtroposApi::remember(const GroupKey& body, std::size_t taken) {
    constexpr std::size_t begun_max = 1024;
    const std::scoped_lock lock(begun_mutex_);
    begun_.push_back({.body = body, .taken = taken});
    if (begun_.size() > begun_max) begun_.pop_front();
}

HttpAnswer AtroposApi::send(const HttpRequest& request, bool list) {
    const JsonValue body = parse_json(request.body);
    std::vector<JsonValue> groups;
    if (list) {
        if (!body.is_array()) throw BadRecord("the body must be a list of groups");
        for (const JsonValue group : body.elements()) groups.push_back(group);
    } else {
        groups.push_back(body);
    }
    std::vector<AtroposLine> lines;
    // All of them are read before one is sent: a bad group costs no other, because nothing is
    // taken.
    for (const JsonValue group : groups) {
        check_group(group);
        lines.emplace_back(run_id_, AtroposLine::Uneven::kept)
            .parse(group, hub_->schema(), bodies_++);
    }
    std::uint64_t buffered = 0;
    std::optional<std::uint64_t> kept;
    const GroupKey key = list ? GroupKey::of(request.body, 0) : GroupKey();
    for (std::size_t i = list ? taken_of(key) : 0; i < lines.size(); i++) {
        const std::uint64_t id = hub_->next_id();
        for (ParsedRecord& member : lines[i].members()) member.meta.visit = id;
        const AtroposHub::Posted posted = hub_->post(lines[i].members(), request.gone);
        if (posted.sent != LaneSend::ok) {
            if (i > 0) remember(key, i);
            return not_received(posted, hub_->stuck());
        }
        if (posted.buffered) {
            buffered++;
            kept = posted.buffered;
        }
        const std::scoped_lock lock(latest_mutex_);
        latest_ = groups[i].text();
    }
    if (!list && !kept) return say({{"status", "received"}});
    if (!list) return say({{"status", "buffered"}, {"buffer_size", *kept}});
    Json answer{{"status", "received"}, {"groups_processed", lines.size()}};
    if (buffered != 0) {
        answer["buffered"] = buffered;
        answer["last_buffer_size"] = *kept;
    }
    return say(answer);
}

HttpAnswer AtroposApi::status(const HttpRequest&) {
    hub_->look();
    return hub_->with_book(
        [](AtroposBook& book) {
            return say({{"current_step", book.step()}, {"queue_size", book.waiting()}});
        },
        false);
}

HttpAnswer AtroposApi::status_env(const HttpRequest& request) {
    const std::int64_t id = Fields(request.body).whole("env_id");
    hub_->look();
    return hub_->with_book(
        [&](AtroposBook& book) {
            if (id < 0 || static_cast<std::size_t>(id) >= book.envs().size()) {
                return refuse(404, fmt::format("unknown environment {}", id));
            }
            const AtroposEnvStatus now = book.status_of(id);
            return say({{"current_step", book.step()},
                        {"queue_size", now.queue_size},
                        {"unallocated_fraction", now.unallocated_fraction},
                        {"self_queue_size", now.self_queue_size},
                        {"max_group_size", now.max_group_size},
                        {"env_weight", now.env_weight}});
        },
        false);
}

HttpAnswer AtroposApi::reset_data(const HttpRequest&) {
    {
        const std::scoped_lock lock(begun_mutex_);
        begun_.clear();
    }
    if (const std::string problem = hub_->reset(); !problem.empty()) return refuse(503, problem);
    {
        const std::scoped_lock lock(latest_mutex_);
        latest_.clear();
    }
    return {.body = "Reset successful", .content_type = "text/plain; charset=utf-8"};
}

}  // namespace rollring::cli
