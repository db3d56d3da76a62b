#include "cli/commands/input_options.hpp"

#include <fmt/core.h>

#include "cli/commands/command.hpp"

namespace rollring::cli {

namespace CLI = command_line;

void add_input_options(CLI::App* app, InputOptions& options, std::string_view more) {
    app->add_option("-i,--input", options.input,
                    fmt::format("JSON lines to send, or one JSON list, gzip too;\n"
                                "{}`rollring formats` shows the formats",
                                more))
        ->type_name("FILE");
    app->add_option("--synthetic", options.synthetic,
                    "Generate a load; all parts have defaults:\n"
                    "groups=1000,group-size=8,tokens=2048:32768\n"
                    "[,routed-experts=48x8][,experts=128][,seed=1]")
        ->type_name("SPEC")
        ->excludes("--input");
    app->add_option("--format", options.format,
                    "rollring: one record per line; atropos: one ScoredDataGroup or\n"
                    "ScoredDataItem per line, a list of them, or a reply of /batch")
        ->check(CLI::IsMember({"rollring", "atropos"}))
        ->type_name("FORMAT")
        ->capture_default_str();
    app->add_option("--shuffle", options.shuffle, "Send in random order, with this seed")
        ->type_name("SEED");
    app->add_option("--repeat", options.repeat,
                    "Passes over the input; `visit` grows with each pass")
        ->type_name("N")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app->add_option("--visit", options.visit,
                    "Visit of the first pass. A trainer takes each group of a visit\n"
                    "once; a second run over the same instances needs another visit")
        ->type_name("N")
        ->capture_default_str();
    app->add_option("--source", options.source_name, "Environment of records without a source")
        ->type_name("NAME");
    app->add_option("--run", options.run_id,
                    "Part of the generated keys of Atropos groups without instance_id;\n"
                    "default: random for each producer. With the ID of an earlier run,\n"
                    "records of that run are duplicates")
        ->type_name("ID");
    add_bytes(app, "--max-line", options.line_bytes_max, "Longest accepted line")
        ->default_str("512MiB");
}

Result<std::unique_ptr<RecordSource>> open_source(const InputOptions& options) {
    const auto refuse = [](std::string why) {
        return refused(Errc::invalid_argument, std::move(why));
    };
    Selection selection{.shuffle = options.shuffle,
                        .repeat = options.repeat,
                        .visit = options.visit,
                        .line_bytes_max = options.line_bytes_max,
                        .group_size = options.group_size,
                        .skips_bad = options.skip_bad};
    constexpr std::uint64_t line_bytes_limit = std::uint64_t{1} << 32;
    if (options.line_bytes_max == 0 || options.line_bytes_max >= line_bytes_limit) {
        return refuse("--max-line must be at least 1 byte and less than 4GiB");
    }
    if (!options.shard.empty()) {
        const auto shard = parse_shard(options.shard);
        if (!shard) {
            return refuse(fmt::format("--shard {} is not I/N with I from 0 to N-1, as in 0/4",
                                      options.shard));
        }
        selection.shard = *shard;
    }
    if (!options.input.empty()) {
        const Format format = options.format == "atropos" ? Format::atropos : Format::rollring;
        return open_json_source(options.input, format, selection, options.source_name,
                                options.run_id);
    }
    if (options.synthetic.empty()) {
        return refuse("nothing to send: pass --input FILE.jsonl, --input - or --synthetic SPEC");
    }
    std::string problem;
    const auto spec = parse_synthetic(options.synthetic, problem);
    if (!spec) return refuse("--synthetic: " + problem);
    return make_synthetic(*spec, selection, options.source_name);
}

std::vector<std::string> to_arguments(const InputOptions& options) {
    std::vector<std::string> arguments;
    const auto add = [&](const char* name, const std::string& value) {
        if (!value.empty()) arguments.push_back(std::string(name) + "=" + value);
    };
    add("--input", options.input);
    add("--synthetic", options.synthetic);
    add("--format", options.format);
    add("--source", options.source_name);
    add("--run", options.run_id);
    add("--max-line", fmt::format("{}", options.line_bytes_max));
    add("--repeat", fmt::format("{}", options.repeat));
    add("--visit", fmt::format("{}", options.visit));
    if (options.shuffle) add("--shuffle", fmt::format("{}", *options.shuffle));
    add("--shard", options.shard);
    if (options.group_size != 0) add("--group-size", fmt::format("{}", options.group_size));
    return arguments;
}

}  // namespace rollring::cli
