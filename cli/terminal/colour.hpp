#pragma once
// Colours for people: on a terminal, and elsewhere only on request.

#include <string>
#include <string_view>

namespace rollring::cli {

enum class ColourMode { automatic, always, never };
void set_colour_mode(ColourMode mode);

enum class Style { error, warning, heading };

// Whether text for this descriptor has colours: by --color, or if it is a terminal, NO_COLOR is
// unset or empty and TERM is neither unset nor "dumb".
[[nodiscard]] bool coloured(int descriptor);

// Whether it is a terminal that knows escape sequences, to erase a line or to clear the page.
[[nodiscard]] bool moves_cursor(int descriptor);

// The text in that style; unchanged if `descriptor` has no colours.
[[nodiscard]] std::string painted(Style style, std::string_view text, int descriptor);

// A help text: headings are lines such as "Options:", and the word "Usage:".
[[nodiscard]] std::string painted_help(std::string_view text, int descriptor);

}  // namespace rollring::cli
