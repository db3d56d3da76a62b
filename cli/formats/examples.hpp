#pragma once
// The possible formats of files of rollouts, each with a complete example.

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
