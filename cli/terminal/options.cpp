#include "cli/terminal/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <sstream>

#include "cli/terminal/nearest.hpp"
#include "cli/terminal/quantity.hpp"

namespace rollring::command_line {

struct Check::Parts {
    ::CLI::Validator validator;
};

struct Option::Parts {
    ::CLI::Option* option;
};

struct App::Parts {
    std::unique_ptr<::CLI::App> own = nullptr;  // of the program
    ::CLI::App* app = nullptr;
    std::deque<Option> options = {};
    std::deque<App> subcommands = {};

    Option* keep(::CLI::Option* option) { return &options.emplace_back(Option::Parts{option}); }
};

namespace {

// The value in an option; for an optional its content.
template <class T>
struct Kept {
    using Type = T;
};
template <class T>
struct Kept<std::optional<T>> {
    using Type = T;
};

// CLI11 names only words that are its own in the usage line.
class UsageOfWords : public ::CLI::Formatter {
  public:
    explicit UsageOfWords(std::string words) : words_(std::move(words)) {}
    std::string make_usage(const ::CLI::App* app, std::string name) const override {
        std::string line = Formatter::make_usage(app, std::move(name));
        return line.insert(line.find_last_not_of('\n') + 1, " " + words_);
    }

  private:
    std::string words_;
};

std::string grouped(std::int64_t number) {
    const bool negative = number < 0;
    const auto size = negative ? 0 - static_cast<std::uint64_t>(number) : std::uint64_t(number);
    return (negative ? "-" : "") + cli::count_text(size);
}
std::string grouped(std::uint64_t number) {
    return cli::count_text(number);
}

// CLI11 uses strtoull, for which -1 and too large numbers are the largest number, and 010 is eight.
// Here a number is decimal and taken literally; it goes on without leading zeros.
template <class T>
::CLI::Validator whole_number() {
    const auto read = [](std::string& text) -> std::string {
        T value{};
        const char* last = text.data() + text.size();
        const auto [end, error] = std::from_chars(text.data(), last, value);
        if (error == std::errc{} && end == last) {
            text = std::to_string(value);
            return {};
        }
        using Widest = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
        return fmt::format("'{}' is not a whole number from {} to {}", text,
                           grouped(Widest{std::numeric_limits<T>::min()}),
                           grouped(Widest{std::numeric_limits<T>::max()}));
    };
    return {read, ""};
}

template <class T>
void check_number([[maybe_unused]] ::CLI::Option* option) {
    if constexpr (std::is_integral_v<typename Kept<T>::Type>) {
        option->transform(whole_number<typename Kept<T>::Type>());
    }
}

// CLI11's own check prints the largest double digit by digit.
template <class Good>
::CLI::Validator real_number(const char* description, const char* wanted, const Good& good) {
    const auto read = [=](const std::string& text) -> std::string {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool whole = !text.empty() && end == text.c_str() + text.size();
        if (whole && std::isfinite(value) && good(value)) return {};
        return fmt::format("'{}' is not {}", text, wanted);
    };
    return {read, description};
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& words,
                         const std::string& otherwise) {
    const std::string near = cli::nearest(word, words);
    return near.empty() ? otherwise : fmt::format(" (did you mean {}?)", near);
}

std::string unknown_option(const ::CLI::App& app, const std::string& word) {
    std::vector<std::string> names;
    for (const ::CLI::Option* option : app.get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    const std::string bare = word.substr(0, word.find('='));
    return fmt::format("unknown option '{}'{}", bare, did_you_mean(bare, names, ""));
}

std::vector<std::string> commands_of(const ::CLI::App& app) {
    std::vector<std::string> names;
    for (const ::CLI::App* command : app.get_subcommands(nullptr)) {
        names.push_back(command->get_name());
    }
    return names;
}

std::string unknown_command(const ::CLI::App& app, const std::string& word) {
    const std::vector<std::string> names = commands_of(app);
    const std::string listed = fmt::format(" (commands: {})", fmt::join(names, ", "));
    return fmt::format("unknown command '{}'{}", word, did_you_mean(word, names, listed));
}

// The words without a meaning; of a subcommand if the line names one.
std::string not_expected(const ::CLI::App& app) {
    const auto words = app.remaining(true);
    if (words.empty()) return {};
    const auto commands = app.get_subcommands();
    const ::CLI::App& asked = commands.empty() ? app : *commands.front();
    const auto option =
        std::ranges::find_if(words, [](const std::string& word) { return word.starts_with("--"); });
    if (option != words.end()) return unknown_option(asked, *option);
    if (words.front().starts_with('-')) return fmt::format("unknown option '{}'", words.front());
    if (commands.empty()) return unknown_command(app, words.front());
    return fmt::format("unexpected argument{} '{}'", words.size() == 1 ? "" : "s",
                       fmt::join(words, "', '"));
}

// "--flag: 'x' is not valid", as options of other kinds report it.
std::string not_converted(const std::string& text) {
    constexpr std::string_view start = "Could not convert: ";
    const auto equals = text.find(" = ");
    if (!text.starts_with(start) || equals == std::string::npos) return text;
    return fmt::format("{}: '{}' is not valid", text.substr(start.size(), equals - start.size()),
                       text.substr(equals + 3));
}

// CLI11's text for a wrong line, or a better one.
std::string told(const ::CLI::App& app, const ::CLI::ParseError& error) {
    const int code = error.get_exit_code();
    std::string text;
    if (code == static_cast<int>(::CLI::ExitCodes::RequiredError) ||
        code == static_cast<int>(::CLI::ExitCodes::ExtrasError)) {
        text = not_expected(app);  // may be the cause of a missing option
    }
    if (!text.empty()) return text;
    constexpr std::string_view no_command = "A subcommand is required";  // CLI11's word for one
    if (error.what() != no_command) return not_converted(error.what());
    return fmt::format("a command is required: {}", fmt::join(commands_of(app), ", "));
}

}  // namespace

Check::Check(Parts parts) : parts_(std::make_shared<const Parts>(std::move(parts))) {}

// NOLINTBEGIN(readability-identifier-naming): the names of CLI11
template <class T>
Check Range(T low, T high) {
    const std::string bounds = fmt::format("{} to {}", low, high);
    return Check({::CLI::Validator(
        [low, high, bounds](const std::string& text) -> std::string {
            T value{};
            const bool good = ::CLI::detail::lexical_cast(text, value);
            if (good && value >= low && value <= high) return {};
            return fmt::format("'{}' must be {}", text, bounds);
        },
        bounds)});
}
template Check Range(int, int);
template Check Range(std::int64_t, std::int64_t);
template Check Range(double, double);

Check IsMember(const std::vector<std::string>& words) {
    return Check({::CLI::IsMember(words)});
}

const Check PositiveNumber({real_number("POSITIVE", "a number greater than 0",
                                        [](double value) { return value > 0; })});
const Check NonNegativeNumber({real_number("NONNEGATIVE", "a number that is 0 or more",
                                           [](double value) { return value >= 0; })});
// NOLINTEND(readability-identifier-naming)

Option::Option(Parts parts) : parts_(std::make_unique<Parts>(parts)) {}
Option::~Option() = default;

Option* Option::type_name(const std::string& name) {
    parts_->option->type_name(name);
    return this;
}

Option* Option::capture_default_str() {
    parts_->option->capture_default_str();
    return this;
}

Option* Option::default_str(const std::string& text) {
    parts_->option->default_str(text);
    return this;
}

Option* Option::group(const std::string& name) {
    parts_->option->group(name);
    return this;
}

Option* Option::required() {
    parts_->option->required();
    return this;
}

Option* Option::expected(int least, int most) {
    parts_->option->expected(least, most);
    return this;
}

Option* Option::check(const Check& check) {
    parts_->option->check(check.parts().validator);
    return this;
}

Option* Option::needs(Option* other) {
    parts_->option->needs(other->parts_->option);
    return this;
}

Option* Option::excludes(Option* other) {
    parts_->option->excludes(other->parts_->option);
    return this;
}

Option* Option::excludes(const std::string& other) {
    parts_->option->excludes(other);
    return this;
}

App::App(const std::string& description, const std::string& name)
    : parts_(std::make_unique<Parts>()) {
    parts_->own = std::make_unique<::CLI::App>(description, name);
    parts_->app = parts_->own.get();
}
App::App(Parts parts) : parts_(std::make_unique<Parts>(std::move(parts))) {}
App::~App() = default;

App* App::add_subcommand(const std::string& name, const std::string& description) {
    Parts parts;
    parts.app = parts_->app->add_subcommand(name, description);
    return &parts_->subcommands.emplace_back(std::move(parts));
}

void App::footer(const std::string& text) {
    parts_->app->footer(text);
}

void App::require_subcommand(int count) {
    parts_->app->require_subcommand(count);
}

void App::end_at_word(const std::string& words) {
    parts_->app->prefix_command();
    parts_->app->formatter(std::make_shared<UsageOfWords>(words));
}

void App::leave_all_words() {
    parts_->app->prefix_command();
    parts_->app->set_help_flag();
}

std::vector<std::string> App::rest() const {
    return parts_->app->remaining();
}

void App::set_version_flag(const std::string& names, const std::string& version) {
    parts_->app->set_version_flag(names, version);
}

template <class T>
Option* App::add_option(const std::string& names, T& value, const std::string& help) {
    ::CLI::Option* option = parts_->app->add_option(names, value, help);
    check_number<T>(option);
    return parts_->keep(option);
}
template Option* App::add_option(const std::string&, std::string&, const std::string&);
template Option* App::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option* App::add_option(const std::string&, double&, const std::string&);
template Option* App::add_option(const std::string&, std::int64_t&, const std::string&);
template Option* App::add_option(const std::string&, std::uint32_t&, const std::string&);
template Option* App::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option* App::add_option(const std::string&, std::optional<std::uint32_t>&,
                                 const std::string&);
template Option* App::add_option(const std::string&, std::optional<std::uint64_t>&,
                                 const std::string&);

Option* App::add_flag(const std::string& names, bool& value, const std::string& help) {
    return parts_->keep(parts_->app->add_flag(names, value, help));
}

Option* App::add_text(const std::string& names, std::function<void(const std::string&)> function,
                      const std::string& help) {
    const auto call = [function = std::move(function)](const std::string& text) {
        try {
            function(text);
        } catch (const ValidationError& error) {
            throw ::CLI::ValidationError(error.name, error.what());
        }
    };
    return parts_->keep(parts_->app->add_option_function<std::string>(names, call, help));
}

Option* App::get_option(const std::string& name) {
    return parts_->keep(parts_->app->get_option(name));
}

void App::parse(int argc, const char* const* argv) {
    try {
        parts_->app->parse(argc, argv);
    } catch (const ::CLI::ParseError& error) {
        std::ostringstream text;
        parts_->app->exit(error, text, text);
        throw ParseError(error.get_exit_code(), told(*parts_->app, error), text.str());
    }
}

bool App::given(const std::string& option) const {
    return parts_->app->count(option) != 0;
}
bool App::parsed() const {
    return parts_->app->parsed();
}

std::string App::get_name() const {
    return parts_->app->get_name();
}

}  // namespace rollring::command_line
