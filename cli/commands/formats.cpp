// `rollring formats`: the formats for --input of produce and demo, with examples.

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "cli/commands/command.hpp"
#include "cli/formats/examples.hpp"

namespace rollring::cli {
namespace {

constexpr const char* formats_footer = R"(Examples:
  rollring formats
  rollring formats prompt > example.jsonl    # one example alone
  rollring formats prompt | rollring produce --input - --group-size 2 --digest)";

constexpr const char* readers =
    "`rollring produce --input FILE` and `rollring demo --input FILE` read the formats below.\n"
    "The file may be compressed by gzip, and may begin with a byte order mark. All keys that are\n"
    "missing on a line are named at once.\n\n";
constexpr const char* python_reader =
    "The Python package reads these as well, and Parquet files and folders of `datasets`\n"
    "(after `pip install datasets`). It makes tokens of text by a tokenizer of transformers\n"
    "(after `pip install transformers jinja2`), and prints lines for --input:\n"
    "  python3 -m rollring.rollouts FILE --tokenizer PATH | rollring produce r --input -\n"
    "In Python: rollring.read_rollouts(FILE, tokenizer=PATH).\n\n";

std::string indented(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const auto end = std::min(text.find('\n'), text.size());
        out += fmt::format("  {}\n", text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return out;
}

std::string described(Reader reader) {
    std::string out;
    for (const FormatExample& one : format_examples()) {
        if (one.reader != reader) continue;
        const std::string options = one.options.empty() ? "" : fmt::format("  ({})", one.options);
        out += fmt::format("{}{}\n{}\n{}\n", one.name, options, indented(one.what),
                           indented(one.text));
    }
    return out;
}

int formats(const std::string& name) {
    if (name.empty()) {
        print(std::string(readers) + described(Reader::program) + python_reader +
              described(Reader::python));
        return exit_ok;
    }
    const auto examples = format_examples();
    const auto found = std::ranges::find(examples, name, &FormatExample::name);
    if (found == examples.end()) {
        std::string names;
        for (const FormatExample& one : examples) {
            names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
        }
        return fail(Errc::invalid_argument,
                    fmt::format("'{}' is not a format; there are {}", name, names));
    }
    print(std::string(found->text));
    return exit_ok;
}

}  // namespace

Command add_formats(CLI::App& app) {
    auto name = std::make_shared<std::string>();
    CLI::App* sub = app.add_subcommand("formats", "Show the accepted formats of rollout files");
    sub->footer(formats_footer);
    sub->add_option("FORMAT", *name, "Print the example of this format alone");
    return {sub, [name] { return formats(*name); }};
}

}  // namespace rollring::cli
