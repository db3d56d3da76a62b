#pragma once
// The formats that files of rollouts may have, each with an example that works as it stands.

#include <span>
#include <string_view>

namespace rollring::cli {

enum class Reader {
    program,  // produce and demo
    python,   // rollring.rollouts, which needs a tokenizer for text
};

struct FormatExample {
    std::string_view name;
    std::string_view what;
    Reader reader;
    std::string_view options;  // of produce, or of rollring.rollouts
    std::string_view text;     // a whole file
};

std::span<const FormatExample> format_examples();

}  // namespace rollring::cli
