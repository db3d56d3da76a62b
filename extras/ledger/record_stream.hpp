#pragma once
// Reads a ledger's records in a given order, each of them once: a thread reads large pieces of the
// segments ahead, while the caller checks and copies what has come.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "chunk.hpp"
#include "fd.hpp"
#include "liveness.hpp"
#include "rollring/error.hpp"

namespace rollring::ledger {

// An open segment.
class DataFile {
  public:
    // `cached`: the page cache has it, as it was read just now. Otherwise it is read past the page
    // cache, where the file system can.
    static Result<DataFile> open(const std::filesystem::path& path, std::uint64_t file_id,
                                 bool cached);

    struct Unread {
        std::uint64_t offset;  // of the block
        int error;             // errno
    };
    // Memory, offset and length are multiples of a block. A block that cannot be read has zeros, as
    // everything behind the end of the file, and is added to `unread`.
    void read(std::uint64_t offset, std::span<std::byte> to, std::vector<Unread>& unread) const;
    [[nodiscard]] std::uint64_t file_id() const { return file_id_; }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  private:
    DataFile(Fd fd, std::filesystem::path path, std::uint64_t file_id)
        : fd_(std::move(fd)), path_(std::move(path)), file_id_(file_id) {}
    [[nodiscard]] int read_some(std::uint64_t offset, std::span<std::byte> to) const;
    Fd fd_;
    std::filesystem::path path_;
    std::uint64_t file_id_;
};

using DataFiles = std::map<std::uint64_t, DataFile>;  // by segment

class RecordStream {
  public:
    struct Place {  // of an entry, header and padding included
        std::uint64_t segment;
        std::uint64_t offset;
        std::uint64_t bytes;
    };
    RecordStream(DataFiles files, std::vector<Place> order);
    RecordStream(const RecordStream&) = delete;
    RecordStream& operator=(const RecordStream&) = delete;
    ~RecordStream();
    [[nodiscard]] Result<void> start();

    struct Read {
        const DataFile* file = nullptr;
        std::span<const std::byte> bytes;  // not checked
        std::string problem;               // of a block of it that could not be read; empty: none
    };
    // The next one of the order, which must have one; valid until the next call.
    [[nodiscard]] Read next();

    // A forked child has not the thread, and leaves the object as it is.
    struct End {
        void operator()(RecordStream* stream) const {
            if (stream->maker_.is_this()) delete stream;
        }
    };

  private:
    // Records that follow each other in the order, and the pieces of files that have them.
    struct Window {
        struct Piece {
            const DataFile* file;
            std::uint64_t begin;  // in the file
            std::uint64_t end;
            std::uint64_t at;  // in memory
            std::vector<DataFile::Unread> unread;
        };
        struct Record {
            std::size_t piece;
            std::uint64_t offset;  // in the file
            std::uint64_t bytes;
        };
        BlockBuffer memory;
        std::vector<Piece> pieces;
        std::vector<Record> records;
    };
    void run();
    void plan(Window& window, std::size_t first, std::uint64_t bytes_max) const;
    static void fill(Window& window);

    MakerProcess maker_;
    DataFiles files_;
    std::vector<Place> order_;
    std::size_t given_ = 0;  // of the oldest window's records
    std::thread thread_;
    std::mutex guard_;
    std::condition_variable changed_;
    std::vector<Window> windows_;
    std::uint64_t read_ = 0;  // windows
    std::uint64_t used_ = 0;  // likewise; the caller has the one behind
    bool ends_ = false;
};

}  // namespace rollring::ledger
