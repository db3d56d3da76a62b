#pragma once
// The file of `consume --output`: JSON lines, each record in the format that it came in.

#include <cstdio>
#include <memory>
#include <string>

#include "cli/atropos_json.hpp"
#include "rollring/error.hpp"

namespace rollring::cli {

class RecordOutput {
  public:
    // "-" is standard output.
    static Result<RecordOutput> open(const std::string& path);

    void add(const TrajectoryView& record, const Schema& schema);
    // So many bytes wait for flush().
    [[nodiscard]] std::uint64_t waiting_bytes() const { return text_.size(); }
    // To the system: afterwards the records survive this process. False if the disk is full.
    [[nodiscard]] bool flush();
    // Writes incomplete groups too; returns how many there were.
    std::uint64_t finish() { return groups_.finish(text_); }
    [[nodiscard]] const std::string& problem() const { return problem_; }

  private:
    struct CloseFile {
        void operator()(std::FILE* file) const {
            if (file != stdout) static_cast<void>(std::fclose(file));
        }
    };

    std::string path_;
    std::string problem_;
    std::unique_ptr<std::FILE, CloseFile> file_;
    std::string text_;
    AtroposGroups groups_;
};

}  // namespace rollring::cli
