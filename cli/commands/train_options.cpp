// The options of `rollring consume --group-size`.

#include "cli/commands/train.hpp"

namespace rollring::cli {
namespace {

constexpr const char* help_group = "Groups";

// Options without effect unless --group-size is given.
struct Adder {
    CLI::App* sub;
    CLI::Option* size;

    // Returns the option, for its defaults.
    CLI::Option* needs(CLI::Option* option) const { return option->needs(size)->group(help_group); }
    template <class T>
    CLI::Option* count(const char* name, T& value, const char* help) const {
        return needs(sub->add_option(name, value, help)->type_name("N"));
    }
    template <class T>
    void choice(const char* name, T& value, const std::type_identity_t<Choices<T>>& choices,
                const char* help) const {
        needs(add_choice(sub, name, value, choices, help));
    }
};

CLI::Option* add_size(CLI::App* sub, TrainOptions& options) {
    return add_group_size(sub,
                          "Train on complete groups; N is the size of groups whose records\n"
                          "have no group_size; auto: 8",
                          [&options](const std::string&, std::optional<std::uint32_t> size) {
                              options.on = true;
                              options.stash.group_size = size.value_or(options.stash.group_size);
                          })
        ->group(help_group);
}

// The size, holding time and number of batches.
void add_batches(const Adder& add, TrainOptions& options) {
    add.count("--batch-groups", options.batch_groups, "Groups in a batch")->default_str("16");
    add.count("--batch-sequences", options.batch_sequences,
              "... or sequences (records) in a batch");
    add.count("--batch-tokens", options.batch_tokens, "... or tokens in a batch");
    add.needs(add.sub->add_option("--train-ms", options.train_ms,
                                  "How long to hold a batch, to simulate training"))
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{86'400'000}))
        ->type_name("MS");
    add.count("--batches", options.batches_max, "Stop after N batches; 0: no limit")
        ->capture_default_str();
    add.choice("--output-format", options.whole_records, {{"summary", false}, {"records", true}},
               "Lines of --output, written before a batch is acknowledged: one\n"
               "per batch with the rewards and advantages of its groups; or one\n"
               "per record, group by group, with tokens and all columns");
}

// The end of an incomplete group, and the treatment of its members.
void add_deadlines(const Adder& add, TrainOptions& options) {
    StashOptions& stash = options.stash;
    add.needs(add_duration(add.sub, "--deadline", options.deadline_ms,
                           "Age at which --at-deadline applies to an incomplete group"))
        ->default_str("none");
    add.choice("--at-deadline", stash.at_deadline,
               {{"ship", AtDeadline::ship}, {"drop", AtDeadline::drop}, {"hold", AtDeadline::hold}},
               "Ship the group if it has --min-size members, drop it, or hold it");
    add.count("--min-size", stash.min_size, "Minimum number of members of a shipped group")
        ->capture_default_str();
    add.choice(
        "--on-failed", stash.on_failed,
        {{"shrink", OnFailed::shrink}, {"void", OnFailed::void_group}, {"hold", OnFailed::hold}},
        "Failed member: ship without it, void the group, or wait for a retry");
    add.choice(
        "--bad-reward", stash.bad_reward,
        {{"fail", BadReward::fail}, {"void", BadReward::void_group}, {"absent", BadReward::absent}},
        "Reward is NaN or infinite: the member fails, the group is void,\n"
        "or the member counts as one without a reward");
    add.needs(add_duration(add.sub, "--no-progress", options.no_progress_ms,
                           "Report incomplete groups when nothing has shipped for this long"))
        ->default_str("60s");
}

// The selection of members and groups that ship, and the data that come with them.
void add_selection(const Adder& add, StashOptions& stash) {
    add.count("--extra", stash.extra, "Members accepted beyond the group size; the size is shipped")
        ->capture_default_str();
    add.choice("--select", stash.advanced.select,
               {{"first", Select::first}, {"uniform", Select::uniform}},
               "Which members ship: the first to finish, or a random choice");
    add.choice(
        "--order", stash.order,
        {{"windowed", Order::windowed}, {"fifo", Order::fifo}, {"freshest", Order::freshest}},
        "Which complete groups ship first");
    add.count("--max-lag", stash.max_lag, "Maximum policy lag of a member, in versions; -1: any")
        ->capture_default_str();
    add.choice("--stale", stash.stale, {{"drop", Stale::drop}, {"withhold", Stale::withhold}},
               "Treatment of members beyond --max-lag");
    add.choice("--zero-variance", stash.zero_variance,
               {{"keep", ZeroVariance::keep}, {"drop", ZeroVariance::drop}},
               "Treatment of groups whose rewards are equal except for rounding");
    add.choice("--advantages", stash.advantages,
               {{"grpo", Advantages::grpo},
                {"mean", Advantages::mean},
                {"loo", Advantages::loo},
                {"none", Advantages::none}},
               "grpo: (r - mean) / (deviation + epsilon); mean: r - mean;\n"
               "loo: r - mean of the others; none: 0");
    add.choice("--deviation", stash.advanced.deviation,
               {{"sample", Deviation::sample}, {"population", Deviation::population}},
               "For grpo: over n - 1, as in TRL's GRPOTrainer and torch, or over n");
    add.needs(add.sub->add_option("--deviation-epsilon", stash.advanced.deviation_epsilon,
                                  "For grpo: added to the deviation"))
        ->type_name("X")
        ->capture_default_str();
}

void add_strict(const Adder& add, TrainOptions& options) {
    add.needs(add.sub->add_flag("--strict", options.strict,
                                "Exit with 1 if a third or more of a producer's records were\n"
                                "dropped as late or duplicate, because their keys collide"));
}

void add_admission(const Adder& add, StashOptions& stash) {
    add.count("--max-open-groups", stash.max_open_groups,
              "Maximum number of open groups; 0: --group-rows of the ring,\n"
              "less one for each lane")
        ->capture_default_str();
    add.needs(add_bytes(add.sub, "--max-open-bytes", stash.advanced.max_open_bytes,
                        "Maximum bytes of open groups; 0: only the lanes limit them"))
        ->default_str("0");
}

}  // namespace

CLI::Option* add_group_size(CLI::App* sub, const std::string& help, TakeGroupSize take) {
    return sub
        ->add_option_function<std::string>(
            "--group-size",
            [take = std::move(take)](const std::string& text) {
                if (text == "auto") return take(text, std::nullopt);
                const auto size = parse_count(text);
                if (!size || *size < 1 || *size > group_size_max) {
                    throw CLI::ValidationError(
                        "--group-size", "'" + text +
                                            "' is neither auto nor a whole number from 1 to " +
                                            count_text(group_size_max));
                }
                take(text, static_cast<std::uint32_t>(*size));
            },
            help)
        ->type_name("N|auto");
}

CLI::Option* add_train_options(CLI::App* sub, TrainOptions& options) {
    const Adder add{sub, add_size(sub, options)};
    add_batches(add, options);
    add_selection(add, options.stash);
    add_deadlines(add, options);
    add_admission(add, options.stash);
    add_strict(add, options);
    return add.size;
}

}  // namespace rollring::cli
