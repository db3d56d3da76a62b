// The options of `rollring consume --group-size`.

#include "train_command.hpp"

namespace rollring::cli {

CLI::Option* add_train_options(CLI::App* sub, TrainOptions& options) {
    StashOptions& stash = options.stash;
    const std::string group = "Groups";
    CLI::Option* size =
        sub->add_option_function<std::string>(
               "--group-size",
               [&options](const std::string& text) {
                   options.on = true;
                   if (text == "auto") return;
                   const auto given = parse_count(text);
                   if (!given || *given > 65'536) {
                       throw CLI::ValidationError(
                           "--group-size", "'" + text + "' is not auto, or a number to 65536");
                   }
                   options.stash.group_size = static_cast<std::uint32_t>(*given);
               },
               "Train on whole groups, of so many members where a record does\n"
               "not say it; auto: 8 there")
            ->type_name("N|auto")
            ->group(group);
    const auto needs = [&](CLI::Option* option) { return option->needs(size)->group(group); };
    const auto count = [&](const char* name, auto& value, const char* help) {
        return needs(sub->add_option(name, value, help)->type_name("N"));
    };
    count("--batch-groups", options.batch_groups, "Groups in a batch")->default_str("16");
    count("--batch-sequences", stash.batch_sequences, "... or by sequences: records");
    count("--batch-tokens", stash.batch_tokens, "... or by tokens");
    count("--extra", stash.extra, "Members taken beyond the size; the size is shipped")
        ->capture_default_str();
    needs(add_choice(sub, "--select", stash.select,
                     {{"first", Select::first}, {"uniform", Select::uniform}},
                     "Which of them: the first to finish, or any"));
    needs(add_duration(sub, "--deadline", options.deadline_ms, "Age at which a group is settled"))
        ->default_str("10m");
    needs(add_choice(
        sub, "--at-deadline", stash.at_deadline,
        {{"ship", AtDeadline::ship}, {"drop", AtDeadline::drop}, {"hold", AtDeadline::hold}},
        "Ship what has --min-size, drop it, or wait on"));
    count("--min-size", stash.min_size, "Fewest members of a group that is shipped")
        ->capture_default_str();
    needs(add_choice(
        sub, "--on-failed", stash.on_failed,
        {{"shrink", OnFailed::shrink}, {"void", OnFailed::void_group}, {"hold", OnFailed::hold}},
        "A failed member: without it, no group, or a retry"));
    needs(add_choice(
        sub, "--order", stash.order,
        {{"windowed", Order::windowed}, {"fifo", Order::fifo}, {"freshest", Order::freshest}},
        "Which complete groups go first"));
    count("--max-lag", stash.max_lag, "Versions that a member may be behind; -1: any")
        ->capture_default_str();
    needs(add_choice(sub, "--stale", stash.stale,
                     {{"drop", Stale::drop}, {"withhold", Stale::withhold}},
                     "What becomes of a member behind that"));
    needs(add_choice(sub, "--zero-variance", stash.zero_variance,
                     {{"keep", ZeroVariance::keep}, {"drop", ZeroVariance::drop}},
                     "Groups whose rewards are all equal"));
    needs(add_choice(sub, "--advantages", stash.advantages,
                     {{"grpo", Advantages::grpo},
                      {"mean", Advantages::mean},
                      {"loo", Advantages::loo},
                      {"none", Advantages::none}},
                     "(r - mean) / std, r - mean, r - mean of the others, 0"));
    count("--max-open-groups", stash.max_open_groups, "Producers wait beyond; 0: --group-rows")
        ->capture_default_str();
    needs(add_bytes(sub, "--max-open-bytes", stash.max_open_bytes,
                    "Producers wait beyond; 0: no limit but the lanes"))
        ->default_str("0");
    needs(sub->add_option("--train-ms", options.train_ms,
                          "How long a batch is kept, as if it were trained on"))
        ->type_name("MS");
    needs(add_duration(sub, "--no-progress", options.no_progress_ms,
                       "Say which groups wait when nothing was shipped for so long"))
        ->default_str("60s");
    count("--batches", options.batches_max, "End after so many batches; 0: no limit")
        ->capture_default_str();
    return size;
}

}  // namespace rollring::cli
