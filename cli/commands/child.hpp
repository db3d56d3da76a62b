#pragma once
// Other commands of this program as child processes, whose standard output this process reads.

#include <sys/types.h>

#include <string>
#include <vector>

#include "rollring/error.hpp"

namespace rollring::cli {

class Child {
  public:
    // Runs this very program with these arguments; its standard input is empty.
    static Result<Child> start(std::string title, const std::vector<std::string>& arguments);

    Child(Child&& other) noexcept;
    Child& operator=(Child&& other) = delete;
    ~Child();  // kills and reaps it if it still runs

    // Takes its output so far; reaps it once it has ended. Does not wait.
    void look();
    void signal(int number) const;

    [[nodiscard]] const std::string& title() const { return title_; }
    [[nodiscard]] bool running() const { return pid_ > 0; }
    [[nodiscard]] int pipe() const { return pipe_; }  // to poll for reading; -1: it has ended
    [[nodiscard]] int exit_code() const { return exit_code_; }  // 128 + n: killed by signal n
    [[nodiscard]] const std::string& output() const { return output_; }

  private:
    Child() = default;
    void reap();

    std::string title_;
    pid_t pid_ = -1;
    int pipe_ = -1;
    int exit_code_ = -1;
    std::string output_;
};

// Waits up to `timeout_ms` until a child has output or has ended.
void wait_for_any(const std::vector<Child>& children, int timeout_ms);

}  // namespace rollring::cli
