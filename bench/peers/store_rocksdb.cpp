// RocksDB with a log that is synced with each batch.

#include <rocksdb/c.h>

#include <array>
#include <memory>

#include "peers/store.hpp"

namespace bench {
namespace {

struct CloseRocks {
    void operator()(rocksdb_t* database) const { rocksdb_close(database); }
    void operator()(rocksdb_options_t* options) const { rocksdb_options_destroy(options); }
    void operator()(rocksdb_writeoptions_t* how) const { rocksdb_writeoptions_destroy(how); }
    void operator()(rocksdb_writebatch_t* batch) const { rocksdb_writebatch_destroy(batch); }
};
template <class T>
using OwnedRocks = std::unique_ptr<T, CloseRocks>;

void check(const char* problem) {
    if (problem != nullptr) fail(std::string("RocksDB: ") + problem);
}

// In the order of the numbers.
std::array<char, 8> key_of(std::uint64_t number) {
    std::array<char, 8> key{};
    for (std::size_t i = 0; i < key.size(); i++) key[i] = static_cast<char>(number >> (56 - 8 * i));
    return key;
}

void with_rocksdb(const std::filesystem::path& directory, const StorePeer::Shape& shape,
                  const std::function<void(const StorePeer::Commit&)>& work) {
    const OwnedRocks<rocksdb_options_t> options(rocksdb_options_create());
    rocksdb_options_set_create_if_missing(options.get(), 1);
    rocksdb_options_set_compression(options.get(), rocksdb_no_compression);
    char* problem = nullptr;
    const OwnedRocks<rocksdb_t> database(rocksdb_open(options.get(), directory.c_str(), &problem));
    check(problem);
    const OwnedRocks<rocksdb_writeoptions_t> how(rocksdb_writeoptions_create());
    rocksdb_writeoptions_set_sync(how.get(), 1);
    const OwnedRocks<rocksdb_writebatch_t> batch(rocksdb_writebatch_create());
    work([&](std::uint64_t number, std::span<const std::byte> records) {
        rocksdb_writebatch_clear(batch.get());
        for (; !records.empty(); records = records.subspan(shape.record_bytes)) {
            const auto key = key_of(number++);
            rocksdb_writebatch_put(batch.get(), key.data(), key.size(),
                                   reinterpret_cast<const char*>(records.data()),
                                   shape.record_bytes);
        }
        rocksdb_write(database.get(), how.get(), batch.get(), &problem);
        check(problem);
    });
}

}  // namespace

StorePeer rocksdb_store() {
    return {.key = "rocksdb", .name = "RocksDB, synced log", .open = with_rocksdb};
}

}  // namespace bench
