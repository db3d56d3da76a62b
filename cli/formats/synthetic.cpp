#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "cli/formats/parsed_record.hpp"
#include "cli/formats/random.hpp"
#include "cli/formats/record_source.hpp"

namespace rollring::cli {
namespace {

constexpr std::uint64_t window_groups = 64;  // this many groups are under way at once
constexpr std::uint32_t vocabulary = 151'936;

// Everything in a record follows from the seed and its number. The columns are slices of pools that
// are filled once, so that making a record costs next to nothing.
class SyntheticSource final : public RecordSource {
  public:
    SyntheticSource(const SyntheticSpec& spec, const Selection& selection, std::string source_name)
        : spec_(spec),
          selection_(selection),
          source_name_(source_name.empty() ? "synthetic" : std::move(source_name)),
          count_(spec.groups * spec.group_size),
          pool_tokens_(std::size_t{spec.tokens_max} + 65'536) {
        fill_pools();
        start_pass();
    }

    Next next(Draft& draft) override {
        while (at_ >= count_) {
            if (count_ == 0 || pass_ + 1 >= selection_.repeat) return Next::end;
            pass_++;
            start_pass();
            if (at_ >= count_) return Next::end;
        }
        last_ = {order_.empty() ? at_ : order_[at_], pass_};
        make(last_.at, last_.pass, draft);
        at_ += selection_.shard.count;
        return Next::record;
    }
    [[nodiscard]] std::optional<Bookmark> bookmark() const override { return last_; }
    Next again(const Bookmark& bookmark, Draft& draft) override {
        make(bookmark.at, bookmark.pass, draft);
        return Next::record;
    }

    [[nodiscard]] std::string where() const override { return fmt::format("record {}", at_); }
    [[nodiscard]] std::string problem() const override { return {}; }
    [[nodiscard]] std::optional<double> progress() const override {
        const double share =
            count_ == 0 ? 1.0
                        : std::min(1.0, static_cast<double>(at_) / static_cast<double>(count_));
        return (static_cast<double>(pass_) + share) / static_cast<double>(selection_.repeat);
    }

    [[nodiscard]] std::optional<std::uint64_t> total() const override {
        return count_ * selection_.repeat;
    }

  private:
    void fill_pools() {
        Random random(spec_.seed);
        tokens_.resize(pool_tokens_);
        for (auto& token : tokens_) token = static_cast<std::int32_t>(random.below(vocabulary));
        logprobs_.resize(pool_tokens_);
        for (auto& value : logprobs_) {
            value = -static_cast<float>(random.below(1U << 20)) / static_cast<float>(1U << 17);
        }
        loss_mask_.assign(std::size_t{spec_.tokens_max} * 2, 0);
        std::fill_n(loss_mask_.begin() + spec_.tokens_max, spec_.tokens_max, std::uint8_t{1});
        const std::size_t ids = std::size_t{spec_.layers} * spec_.experts_per_token;
        if (ids == 0) return;
        expert_bytes_ = spec_.experts > 256 ? 2 : 1;
        experts_.resize(pool_tokens_ * ids * expert_bytes_);
        for (std::size_t i = 0; i < experts_.size(); i += expert_bytes_) {
            const std::uint64_t expert = random.below(spec_.experts);
            experts_[i] = static_cast<std::uint8_t>(expert);
            if (expert_bytes_ == 2) experts_[i + 1] = static_cast<std::uint8_t>(expert >> 8);
        }
    }

    void start_pass() {
        at_ = selection_.shard.index;
        if (!selection_.shuffle) return;
        order_.resize(count_);
        std::iota(order_.begin(), order_.end(), std::uint64_t{0});
        Random random(*selection_.shuffle + pass_ * 0x9e3779b97f4a7c15U);
        shuffle(std::span(order_), random);
    }

    // Record i of the pass: groups come in windows, and within a window all first members come
    // before all second ones, in the order in which rollouts finish.
    void make(std::uint64_t i, std::uint64_t pass, Draft& draft) {
        const std::uint64_t window = i / (window_groups * spec_.group_size);
        const std::uint64_t first = window * window_groups;
        const std::uint64_t in_window = std::min(window_groups, spec_.groups - first);
        const std::uint64_t within = i - first * spec_.group_size;
        const std::uint64_t group = first + within % in_window;

        Random random(spec_.seed ^ (i + 1) * 0xd1342543de82ef95U ^ pass << 40);
        const auto n =
            spec_.tokens_min +
            static_cast<std::uint32_t>(random.below(spec_.tokens_max - spec_.tokens_min + 1));
        const std::size_t from = random.below(pool_tokens_ - n + 1);
        const auto prompt = static_cast<std::uint32_t>(random.below(n / 2 + 1));

        id_.clear();
        fmt::format_to(std::back_inserter(id_), "synthetic/{}/{}", spec_.seed, group);
        draft.clear();
        draft.meta.visit = selection_.visit + pass;
        draft.meta.repetition_id = static_cast<std::uint32_t>(within / in_window);
        draft.meta.group_size = spec_.group_size;
        draft.meta.n_prompt = prompt;
        draft.meta.reward = static_cast<double>(random.below(2));
        draft.meta.origin = rollring_json;
        draft.set_text(Std::instance_id, id_).set_text(Std::source, source_name_);
        draft.set(Std::token_ids, std::span<const std::int32_t>(tokens_).subspan(from, n));
        draft.set(Std::loss_mask,
                  std::span<const std::uint8_t>(loss_mask_).subspan(spec_.tokens_max - prompt, n));
        draft.set(Std::logprobs, std::span<const float>(logprobs_).subspan(from, n));
        if (!experts_.empty()) {
            const std::size_t row = std::size_t{spec_.layers} * spec_.experts_per_token;
            draft.add({static_cast<std::uint16_t>(Std::routed_experts),
                       expert_bytes_ == 2 ? dtype_u16 : dtype_u8,
                       {n, spec_.layers, spec_.experts_per_token, 0},
                       3,
                       experts_.data() + from * row * expert_bytes_});
        }
    }

    SyntheticSpec spec_;
    Selection selection_;
    std::string source_name_;
    std::uint64_t count_;  // records a pass
    std::size_t pool_tokens_;
    std::vector<std::int32_t> tokens_;
    std::vector<float> logprobs_;
    std::vector<std::uint8_t> loss_mask_;  // zeros, then ones
    std::vector<std::uint8_t> experts_;
    std::size_t expert_bytes_ = 1;
    std::vector<std::uint64_t> order_;
    std::uint64_t at_ = 0;
    std::uint64_t pass_ = 0;
    Bookmark last_{};
    std::string id_;
};

template <class T>
bool take(std::string_view text, std::uint64_t least, T& to) {
    const auto number = parse_count(text);
    if (!number || *number < least || *number > std::numeric_limits<T>::max()) return false;
    to = static_cast<T>(*number);
    return true;
}

// "LOW:HIGH" or one number for both; "48x8" with another mark.
template <class T>
bool take_pair(std::string_view text, char mark, T& first, T& second) {
    const auto at = text.find(mark);
    if (at == std::string_view::npos)
        return mark == ':' && take(text, 0, first) && take(text, 0, second);
    return take(text.substr(0, at), 0, first) && take(text.substr(at + 1), 0, second);
}

}  // namespace

std::optional<SyntheticSpec> parse_synthetic(std::string_view text, std::string& problem) {
    SyntheticSpec spec;
    while (!text.empty()) {
        const auto comma = std::min(text.find(','), text.size());
        const std::string_view part = text.substr(0, comma);
        text.remove_prefix(std::min(comma + 1, text.size()));
        const auto equals = std::min(part.find('='), part.size());
        const std::string_view key = part.substr(0, equals);
        const std::string_view value = part.substr(std::min(equals + 1, part.size()));
        const bool good =
            key == "groups"           ? take(value, 0, spec.groups)
            : key == "group-size"     ? take(value, 1, spec.group_size)
            : key == "tokens"         ? take_pair(value, ':', spec.tokens_min, spec.tokens_max)
            : key == "routed-experts" ? take_pair(value, 'x', spec.layers, spec.experts_per_token)
            : key == "experts"        ? take(value, 1, spec.experts) && spec.experts <= 65'536
            : key == "seed"           ? take(value, 0, spec.seed)
                                      : false;
        if (!good) {
            problem = fmt::format(
                "'{}' is not a part of a synthetic load; an example is "
                "groups=1000,group-size=8,tokens=2048:32768,routed-experts=48x8,seed=1",
                part);
            return std::nullopt;
        }
    }
    if (spec.group_size > group_size_max) {
        problem = fmt::format("group-size is {}, must be 1 to {}", count_text(spec.group_size),
                              count_text(group_size_max));
        return std::nullopt;
    }
    if (spec.tokens_min > spec.tokens_max) {
        problem = fmt::format("tokens={}:{} needs the lower number first", spec.tokens_min,
                              spec.tokens_max);
        return std::nullopt;
    }
    if (spec.groups > (std::uint64_t{1} << 40)) {
        problem = "groups is at most 2^40";
        return std::nullopt;
    }
    return spec;
}

std::unique_ptr<RecordSource> make_synthetic(const SyntheticSpec& spec, const Selection& selection,
                                             const std::string& source_name) {
    return std::make_unique<SyntheticSource>(spec, selection, source_name);
}

}  // namespace rollring::cli
