#pragma once
// Command lines: an interface to CLI11 without its header, which takes longer to compile than any
// command. Only options.cpp includes it. Names and behaviour are CLI11's, except that numbers are
// decimal and fit their type, and that errors name the wrong word of a line.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace rollring::command_line {

// The command line is not executed: it asks for help or the version (exit code 0), or is wrong.
class ParseError : public std::runtime_error {
  public:
    ParseError(int code, const std::string& what, std::string text)
        : std::runtime_error(what), code_(code), text_(std::move(text)) {}
    [[nodiscard]] int get_exit_code() const { return code_; }
    // For people, whole lines: the help, or the fault and a pointer to the help.
    [[nodiscard]] const std::string& text() const { return text_; }

  private:
    int code_;
    std::string text_;
};

// Thrown by the function of an option that does not understand its text.
struct ValidationError : std::runtime_error {
    ValidationError(std::string option, const std::string& why)
        : std::runtime_error(why), name(std::move(option)) {}
    std::string name;
};

// The condition that a value has to meet.
class Check {
  public:
    struct Parts;
    explicit Check(Parts parts);
    [[nodiscard]] const Parts& parts() const { return *parts_; }

  private:
    std::shared_ptr<const Parts> parts_;
};
// NOLINTBEGIN(readability-identifier-naming): the names of CLI11
template <class T>
Check Range(T low, T high);
Check IsMember(const std::vector<std::string>& words);
extern const Check PositiveNumber;
extern const Check NonNegativeNumber;
// NOLINTEND(readability-identifier-naming)

// One option. All functions return it again.
class Option {
  public:
    struct Parts;
    explicit Option(Parts parts);
    Option(const Option&) = delete;
    Option& operator=(const Option&) = delete;
    ~Option();

    Option* type_name(const std::string& name);
    Option* capture_default_str();
    Option* default_str(const std::string& text);
    Option* group(const std::string& name);
    Option* required();
    Option* expected(int least, int most);
    Option* check(const Check& check);
    Option* needs(Option* other);
    Option* excludes(Option* other);
    Option* excludes(const std::string& other);

  private:
    std::unique_ptr<Parts> parts_;
};

// A program's command line, or that of one of its subcommands. Options live as long as it.
class App {
  public:
    struct Parts;
    App(const std::string& description, const std::string& name);
    explicit App(Parts parts);
    App(const App&) = delete;
    App& operator=(const App&) = delete;
    ~App();

    App* add_subcommand(const std::string& name, const std::string& description);
    void footer(const std::string& text);
    void require_subcommand(int count);
    // The first word that is not an option, and all after it, belong to another program: see
    // rest(). `words` names them in the usage line.
    void end_at_word(const std::string& words);
    [[nodiscard]] std::vector<std::string> rest() const;
    // All words after the command, --help among them, belong to another program.
    void leave_all_words();
    void set_version_flag(const std::string& names, const std::string& version);

    // `value` is unchanged if the option is absent. For the types that options.cpp lists.
    template <class T>
    Option* add_option(const std::string& names, T& value, const std::string& help = "");
    Option* add_flag(const std::string& names, bool& value, const std::string& help = "");
    template <class T>
        requires std::is_same_v<T, std::string>
    Option* add_option_function(const std::string& names,
                                const std::function<void(const T&)>& function,
                                const std::string& help = "") {
        return add_text(names, function, help);
    }
    Option* get_option(const std::string& name);

    // Throws ParseError.
    void parse(int argc, const char* const* argv);
    [[nodiscard]] bool parsed() const;
    // Whether the command line has this option.
    [[nodiscard]] bool given(const std::string& option) const;
    [[nodiscard]] std::string get_name() const;

  private:
    Option* add_text(const std::string& names, std::function<void(const std::string&)> function,
                     const std::string& help);

    std::unique_ptr<Parts> parts_;
};

}  // namespace rollring::command_line
